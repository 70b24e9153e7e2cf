//! The Go toolchain: builds programs from the Go modules that this repository pins.
//!
//! A program is rebuilt only if its module or its build flags have changed since the last build.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::workspace;

/// The first Go version that downloads a newer toolchain by itself if a module requires one.
const OLDEST_GO: (u32, u32) = (1, 21);

/// A release version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) patch: u32,
}

impl FromStr for Version {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let numbers: Option<Vec<u32>> =
            text.trim_start_matches('v').split('.').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[major, minor, patch]) => Ok(Self { major, minor, patch }),
            _ => bail!("\"{text}\" is not a release: releases are written like 1.36.3"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A program of a module.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The Go package of its `main`.
    pub(crate) package: &'static str,
}

/// A Go module that this repository pins, and the folder for its programs.
pub(crate) struct Pinned {
    /// The display name, with the release.
    pub(crate) name: String,
    /// The folder of the module.
    pub(crate) module: PathBuf,
    /// The folder that holds `bin` with the programs, and one stamp per program.
    pub(crate) home: PathBuf,
    /// Linker flags.
    pub(crate) flags: String,
}

impl Pinned {
    /// Builds those of `programs` that are not built yet.
    pub(crate) fn build(&self, programs: &[&Program]) -> Result<()> {
        let (name, bin) = (&self.name, self.home.join("bin"));
        fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;

        // Without the lock, two concurrent builds would do all the work twice.
        let lock = File::create(self.home.join("lock"))
            .with_context(|| format!("cannot make the lock file of {name}"))?;
        lock.lock().with_context(|| format!("cannot lock {}", self.home.display()))?;

        let wanted = self.checksum()?;
        let missing: Vec<&&Program> =
            programs.iter().filter(|program| !self.is_built(program, &wanted)).collect();
        if missing.is_empty() {
            println!("{name} is built: {}", bin.display());
            return Ok(());
        }

        let go = Go::find(name)?;
        println!("{name}: {} programs to build; the first build takes some minutes", missing.len());
        for (index, program) in missing.iter().enumerate() {
            println!("==> {} ({} of {})", program.name, index + 1, missing.len());
            let start = Instant::now();
            go.build(&self.module, program.package, &self.flags, &bin.join(program.name))?;
            fs::write(self.stamp(program), &wanted)
                .with_context(|| format!("cannot note that {} is built", program.name))?;
            println!("<== {}: ok ({:.1} s)", program.name, start.elapsed().as_secs_f64());
        }
        println!("{name} is built: {}", bin.display());
        Ok(())
    }

    /// One hash of everything that determines the binaries.
    fn checksum(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for file in ["go.mod", "go.sum", "mains.go"] {
            let path = self.module.join(file);
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            hash.update(Sha256::digest(&text));
        }
        hash.update(&self.flags);
        Ok(format!("{:x}", hash.finalize()))
    }

    /// The file that records the checksum a program was built from. Each program has its own file, so that an
    /// interrupted build resumes where it stopped.
    fn stamp(&self, program: &Program) -> PathBuf {
        self.home.join(format!("{}.sha256", program.name))
    }

    fn is_built(&self, program: &Program, wanted: &str) -> bool {
        let noted = fs::read_to_string(self.stamp(program)).unwrap_or_default();
        noted == wanted && self.home.join("bin").join(program.name).exists()
    }
}

/// The version that a go.mod requires of `module`, on a line of its own or in a block.
pub(crate) fn required<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next() == Some(module)).then(|| words.next()).flatten().filter(|word| word.starts_with('v'))
    })
}

/// A Go toolchain that is installed and new enough.
pub(crate) struct Go;

impl Go {
    /// Finds the toolchain. The error names `what` needs Go.
    pub(crate) fn find(what: &str) -> Result<Self> {
        let advice = "install it (https://go.dev/doc/install), then run this again";
        let Ok(output) = Command::new("go").args(["env", "GOVERSION"]).output() else {
            bail!("building {what} needs Go, and there is no `go` on the PATH: {advice}");
        };
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match go_version(&found) {
            Some(version) if version >= OLDEST_GO => Ok(Self),
            _ => bail!(
                "building {what} needs Go {}.{} or newer, and `go` is {found}: {advice}",
                OLDEST_GO.0,
                OLDEST_GO.1
            ),
        }
    }

    /// Builds one `main` package of the module in the folder `module`.
    pub(crate) fn build(&self, module: &Path, package: &str, flags: &str, into: &Path) -> Result<()> {
        let mut command = self.command(module);
        command.env("CGO_ENABLED", "0");
        command.args(["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o"]);
        workspace::run(command.arg(into).arg(package))
            .with_context(|| format!("cannot build {package} in {}", module.display()))
    }

    /// A `go` command in the folder `module`. `GOWORK=off` ignores any Go workspace around the module.
    pub(crate) fn command(&self, module: &Path) -> Command {
        let mut command = Command::new("go");
        command.current_dir(module).env("GOWORK", "off");
        command
    }
}

/// Parses `go1.26.8`, `go1.26-X:nodwarf5`, `go1.27rc1`.
fn go_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.strip_prefix("go")?.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_parsed() {
        assert_eq!(go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(go_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(go_version(""), None);
    }

    #[test]
    fn a_release_is_three_numbers() {
        let version: Version = "v1.36.3".parse().expect("a release");
        assert_eq!(version, "1.36.3".parse().expect("a release"));
        assert_eq!(version.to_string(), "v1.36.3");
        let error = "1.36".parse::<Version>().expect_err("no patch number");
        assert!(error.to_string().contains("written like 1.36.3"), "{error}");
    }

    #[test]
    fn a_program_is_rebuilt_if_its_stamp_differs() {
        let home = std::env::temp_dir().join(format!("quorate-xtask-{}", std::process::id()));
        fs::create_dir_all(home.join("bin")).expect("a folder");
        let pinned = Pinned { name: String::new(), module: PathBuf::new(), home, flags: String::new() };
        let etcd = &Program { name: "etcd", package: "etcd" };
        fs::write(pinned.stamp(etcd), "one").expect("a note");
        assert!(!pinned.is_built(etcd, "one"), "the binary is missing");
        fs::write(pinned.home.join("bin/etcd"), "").expect("a binary");
        assert!(pinned.is_built(etcd, "one"));
        assert!(!pinned.is_built(etcd, "two"));
        fs::remove_dir_all(pinned.home).expect("removed");
    }

    #[test]
    fn a_changed_file_or_flag_changes_the_checksum() {
        let checksum = |module: &str, flags: &str| {
            let (module, flags) = (workspace::root().join("xtask").join(module), flags.to_owned());
            let pinned = Pinned { name: String::new(), module, home: PathBuf::new(), flags };
            pinned.checksum().expect("a checksum")
        };
        let first = checksum("control-plane/1.36", "-s");
        assert_eq!(first, checksum("control-plane/1.36", "-s"));
        assert_ne!(first, checksum("control-plane/1.36", "-w"));
        assert_ne!(first, checksum("control-plane/1.35", "-s"));
    }
}
