//! The network link between this machine and a node: a veth pair.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Addresses reserved for network benchmarks (RFC 2544), which no host uses. Each node takes four: /30.
const RANGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const BLOCKS: u64 = 1 << 15;

/// How many blocks to try: other tests may use some.
const ATTEMPTS: u64 = 64;

/// The addresses of both ends.
#[derive(Debug)]
pub(super) struct Link {
    /// On this machine.
    pub(super) outside: Ipv4Addr,
    /// On the node.
    pub(super) inside: Ipv4Addr,
}

/// The name of the device on this machine. It is removed with its peer on the node.
pub(super) fn device(id: &str) -> String {
    format!("quor-{id}")
}

/// Connects the network namespace of a process to this machine. The node itself sets the address of its eth0.
pub(super) fn connect(id: &str, process: u32) -> Result<Link> {
    let device = device(id);
    let process = process.to_string();
    ip(&["link", "add", &device, "type", "veth", "peer", "name", "eth0", "netns", &process])?;
    ip(&["link", "set", &device, "up"])?;
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    let first = hasher.finish() % BLOCKS;
    let mut refusal = None;
    for attempt in 0..ATTEMPTS {
        let block = u32::from(RANGE) + u32::try_from((first + attempt) % BLOCKS)? * 4;
        let address = |number: u32| Ipv4Addr::from(block + number);
        // If two nodes want the same block, only one gets it: the kernel rejects a second identical route.
        match ip(&["route", "add", &format!("{}/30", address(0)), "dev", &device]) {
            Ok(()) => {
                let outside = address(1);
                ip(&["address", "add", &format!("{outside}/30"), "dev", &device, "noprefixroute"])?;
                return Ok(Link { outside, inside: address(2) });
            }
            Err(error) => refusal = Some(error),
        }
    }
    let refusal = refusal.map(|error| format!(": {error:#}")).unwrap_or_default();
    bail!("no addresses for a node within {RANGE}/15{refusal}")
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("cannot run ip, of iproute2")?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
