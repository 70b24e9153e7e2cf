//! The configuration files of containerd and the kubelet.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::BUSYBOX;
use super::network::Link;

/// The socket of containerd, in the folder of the node.
pub(super) const SOCKET: &str = "cri.sock";

/// The folder of Debian's containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// The addresses of pods (RFC 5737). They are not routed beyond their node, so every node uses the same range.
const PODS: &str = "198.51.100.0/24";

/// Writes the configuration of containerd.
pub(super) fn runtime(folder: &Path) -> Result<()> {
    let networks = folder.join("cni");
    fs::create_dir(&networks)?;
    let network = json!({
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "dataDir": folder.join("addresses")}}],
    });
    fs::write(networks.join("pods.conflist"), network.to_string())?;
    let folder_path = folder.display();
    // `restrict_oom_score_adj`: without the right to lower the OOM score, every sandbox would fail.
    // `snapshotter`: the other snapshotters need features that not every filesystem has.
    let text = format!(
        r#"version = 2
root = "{folder_path}/containerd"
state = "{folder_path}/state"
[grpc]
address = "{folder_path}/{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder_path}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{BUSYBOX}"
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{folder_path}/cni"
"#
    );
    fs::write(folder.join("containerd.toml"), text)?;
    Ok(())
}

/// Writes the configuration of the kubelet.
pub(super) fn kubelet(folder: &Path, cgroup: &str, address: Ipv4Addr) -> Result<()> {
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": address,
        "containerRuntimeEndpoint": format!("unix://{}", folder.join(SOCKET).display()),
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{cgroup}"), "failCgroupV1": false,
        // The kubelet renews its Lease every quarter of this.
        "nodeLeaseDurationSeconds": 12,
        "enforceNodeAllocatable": [], "failSwapOn": false, "oomScoreAdj": 0,
        // The machine may be nearly full, and these tests are not about node pressure.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "makeIPTablesUtilChains": false, "resolvConf": "",
        "podLogsDir": folder.join("logs"), "volumePluginDir": folder.join("volume-plugins"),
        // Only this machine can reach the kubelet.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
    });
    fs::write(folder.join("kubelet.json"), configuration.to_string())?;
    Ok(())
}

/// Writes the address of the node and of this machine. The node waits for this file, so a rename creates it at once.
pub(super) fn address(folder: &Path, link: &Link) -> Result<()> {
    let new = folder.join("address.new");
    fs::write(&new, format!("{} {}\n", link.inside, link.outside))?;
    fs::rename(new, folder.join("address"))?;
    Ok(())
}
