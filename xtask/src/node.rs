//! Checks whether this machine meets the requirements for real nodes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Each required file or program, and the Debian package that contains it.
const FILES: [(&str, &str); 7] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
];

/// Describes the requirements of real nodes that this machine does not meet; `None` if it meets all.
pub(crate) fn missing_requirements() -> Option<String> {
    let mut missing_requirements = Vec::new();
    let mut packages: Vec<&str> =
        FILES.iter().filter(|(file, _)| !is_there(file)).map(|(_, package)| *package).collect();
    packages.dedup();
    if !is_root() {
        missing_requirements.push("root".to_owned());
    } else if packages.is_empty() && !may_have_nodes() {
        missing_requirements
            .push("permission to create namespaces and control groups, which this root lacks".to_owned());
    }
    if !packages.is_empty() {
        missing_requirements.push(format!("the Debian packages {}", packages.join(" ")));
    }
    (!missing_requirements.is_empty()).then(|| missing_requirements.join(", and "))
}

fn is_there(file: &str) -> bool {
    if file.starts_with('/') {
        return Path::new(file).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(file).exists())
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Root in a container often has no permission to create namespaces or control groups.
fn may_have_nodes() -> bool {
    let namespaces = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let cgroups = Path::new("/sys/fs/cgroup");
    let hierarchy = [cgroups.to_owned(), cgroups.join("pids")];
    let Some(hierarchy) = hierarchy.iter().find(|folder| folder.join("cgroup.procs").exists()) else {
        return false;
    };
    let group = hierarchy.join(format!("quorate-xtask-{}", std::process::id()));
    namespaces && fs::create_dir(&group).and_then(|()| fs::remove_dir(&group)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn a_program_is_found_on_the_path_and_a_file_by_its_path() {
        assert!(is_there("sh"));
        assert!(is_there("/proc/self"));
        assert!(!is_there("no-such-program"));
        assert!(!is_there("/no/such/file"));
    }

    /// util-linux is exempt: every Debian system has it.
    #[test]
    fn ci_installs_every_package() {
        let script = fs::read_to_string(workspace::root().join(".ci/run")).expect(".ci/run");
        let line =
            script.lines().find_map(|line| line.strip_prefix("packages=(")).expect("a list of packages");
        let installed: Vec<&str> = line.trim_end_matches(')').split(' ').collect();
        for (_, package) in FILES {
            assert!(package == "util-linux" || installed.contains(&package), "{package} is not in .ci/run");
        }
    }
}
