//! What containerd and the kubelet are told.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::BUSYBOX;
use super::network::Link;

/// Where containerd listens, in the folder of the node.
pub(super) const SOCKET: &str = "cri.sock";

/// Where Debian's containernetworking-plugins are.
const PLUGINS: &str = "/usr/lib/cni";

/// The addresses of pods (RFC 5737). They are known on their own node only, so every node has the same.
const PODS: &str = "198.51.100.0/24";

/// Writes what containerd reads.
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
    // Without the right to lower it, every sandbox fails whose score is not restricted. The other snapshotters need
    // what not every filesystem has.
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

/// Writes what the kubelet reads.
pub(super) fn kubelet(folder: &Path, cgroup: &str, address: Ipv4Addr) -> Result<()> {
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": address,
        "containerRuntimeEndpoint": format!("unix://{}", folder.join(SOCKET).display()),
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{cgroup}"), "failCgroupV1": false,
        // Renewed four times as often.
        "nodeLeaseDurationSeconds": 12,
        "enforceNodeAllocatable": [], "failSwapOn": false, "oomScoreAdj": 0,
        // The machine may be nearly full: that is not what is tried here.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "makeIPTablesUtilChains": false, "resolvConf": "",
        "podLogsDir": folder.join("logs"), "volumePluginDir": folder.join("volume-plugins"),
        // Nobody but this machine reaches it.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
    });
    fs::write(folder.join("kubelet.json"), configuration.to_string())?;
    Ok(())
}

/// Tells the node its address, and where this machine is. It waits for that, so all of it comes at once.
pub(super) fn address(folder: &Path, link: &Link) -> Result<()> {
    let new = folder.join("address.new");
    fs::write(&new, format!("{} {}\n", link.inside, link.outside))?;
    fs::rename(new, folder.join("address"))?;
    Ok(())
}
