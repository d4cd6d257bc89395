//! Processors, memory, NUMA nodes and the settings of the operating system, from `/proc` and `/sys`.

use super::{Look, names, text};
use crate::limits::NAME_CHARS_MAX;
use crate::machine::{Machine, NumaNode};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(super) fn look(machine: &mut Machine, root: &Path) -> Vec<Look> {
    let mut looked = Vec::new();
    processors(machine, root, &mut looked);
    nodes(machine, root, &mut looked);
    memory(machine, root, &mut looked);
    driver(machine, root, &mut looked);
    surroundings(machine, root);
    looked
}

/// Text from a file, short enough to be shown.
pub(super) fn shown(text: &str) -> String {
    text.trim().chars().take(NAME_CHARS_MAX).collect()
}

/// `1 socket`, `2 sockets`.
fn counted(n: u32, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

fn add(looked: &mut Vec<Look>, root: &Path, at: &str, what: Option<String>, otherwise: &str) {
    let found = what.is_some();
    looked.push(Look {
        at: root.join(at).display().to_string(),
        found,
        what: what.unwrap_or_else(|| otherwise.to_string()),
    });
}

fn processors(machine: &mut Machine, root: &Path, looked: &mut Vec<Look>) {
    let info = text(&root.join("proc/cpuinfo")).unwrap_or_default();
    let values = |key: &str| {
        info.lines()
            .filter_map(|l| l.split_once(':'))
            .filter(|(k, _)| k.trim() == key)
            .map(|(_, v)| v.trim())
            .collect::<Vec<_>>()
    };
    let host = &mut machine.host;
    host.cpu = values("model name").first().map(|name| shown(name));
    host.threads = Some(values("processor").len() as u32).filter(|n| *n > 0);
    let sockets: BTreeSet<&str> = values("physical id").into_iter().collect();
    host.sockets = Some(sockets.len() as u32).filter(|n| *n > 0);
    if let Some(flags) = values("flags").first() {
        host.virtual_machine = Some(flags.split_whitespace().any(|flag| flag == "hypervisor"));
        machine.origin.insert("virtual machine".into(), root.join("proc/cpuinfo").display().to_string());
    }
    let what = host.threads.map(|threads| {
        let name = host.cpu.clone().unwrap_or_else(|| "processors".into());
        let sockets = host.sockets.map(|n| format!(" on {}", counted(n, "socket"))).unwrap_or_default();
        format!("{name}, {}{sockets}", counted(threads, "thread"))
    });
    add(looked, root, "proc/cpuinfo", what, "not readable");
}

fn nodes(machine: &mut Machine, root: &Path, looked: &mut Vec<Look>) {
    let directory = root.join("sys/devices/system/node");
    let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut ids: Vec<u32> = names(&directory).iter().filter_map(|n| number(n)).collect();
    ids.sort_unstable();
    machine.host.numa = ids
        .iter()
        .map(|&id| {
            let node = directory.join(format!("node{id}"));
            let distances = text(&node.join("distance")).unwrap_or_default();
            NumaNode {
                id,
                cpus: text(&node.join("cpulist")).filter(|list| !list.is_empty()),
                memory_bytes: text(&node.join("meminfo")).and_then(|t| kibibytes(&t, "MemTotal:")),
                distances: distances.split_whitespace().filter_map(|d| d.parse().ok()).collect(),
            }
        })
        .collect();
    let what = (!ids.is_empty()).then(|| counted(ids.len() as u32, "NUMA node"));
    add(looked, root, "sys/devices/system/node", what, "no NUMA nodes to be seen");
}

/// Bytes after a key in the manner of `/proc/meminfo`: `MemTotal:  16384 kB`, also with a node's name before the key.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().any(|word| word == key))?;
    let (_, value) = line.split_once(key)?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn memory(machine: &mut Machine, root: &Path, looked: &mut Vec<Look>) {
    let info = text(&root.join("proc/meminfo"));
    let host = &mut machine.host;
    if let Some(info) = &info {
        host.memory_bytes = kibibytes(info, "MemTotal:");
        let count = info.lines().find_map(|l| l.strip_prefix("HugePages_Total:")?.trim().parse::<u64>().ok());
        let size = kibibytes(info, "Hugepagesize:");
        host.hugepages_bytes = count.zip(size).and_then(|(count, size)| count.checked_mul(size));
    }
    let transparent = text(&root.join("sys/kernel/mm/transparent_hugepage/enabled"));
    host.transparent_hugepages = transparent.map(|modes| !modes.contains("[never]"));
    let limits = text(&root.join("proc/self/limits")).unwrap_or_default();
    let lock = limits.lines().find_map(|l| l.strip_prefix("Max locked memory")?.split_whitespace().next());
    host.memlock_bytes = lock.and_then(|word| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() });
    host.shm_bytes = text(&root.join("proc/mounts")).and_then(|mounts| shm(&mounts));
    for (fact, at) in [
        ("hugepages", "sys/kernel/mm/transparent_hugepage/enabled"),
        ("memlock", "proc/self/limits"),
        ("shm", "proc/mounts"),
    ] {
        machine.origin.insert(fact.into(), root.join(at).display().to_string());
    }
    let what = machine.host.memory_bytes.map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
    add(looked, root, "proc/meminfo", what, "not readable");
}

/// The size that `/dev/shm` was mounted with; `None` if no size was given (half of memory then) or it is not mounted.
fn shm(mounts: &str) -> Option<u64> {
    let line = mounts.lines().rfind(|l| l.split_whitespace().nth(1) == Some("/dev/shm"))?;
    let options = line.split_whitespace().nth(3)?;
    let size = options.split(',').find_map(|option| option.strip_prefix("size="))?;
    let digits = size.trim_end_matches(['k', 'm', 'g']);
    let unit = match &size[digits.len()..] {
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 1,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn driver(machine: &mut Machine, root: &Path, looked: &mut Vec<Look>) {
    let version = text(&root.join("proc/driver/nvidia/version"));
    let first = version.as_deref().and_then(|v| v.lines().next()).unwrap_or_default();
    let number = first.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()) && w.contains('.'));
    machine.host.driver = machine.host.driver.take().or(number.map(shown));
    // NVRM's first line names the flavour of the kernel module.
    let open = if first.contains("Open Kernel Module") { ", open kernel modules" } else { "" };
    let what = number.map(|n| format!("NVIDIA driver {}{open}", shown(n)));
    add(looked, root, "proc/driver/nvidia/version", what, "the NVIDIA driver is not loaded");
    if let Some(params) = text(&root.join("proc/driver/nvidia/params")) {
        machine.host.driver_registry = Some(registry(&params));
        let at = root.join("proc/driver/nvidia/params").display().to_string();
        machine.origin.insert("registry".into(), at);
    }
}

/// The keys of `RegistryDwords: "ForceP2P=0x11;RMForceP2PType=1"`.
fn registry(params: &str) -> BTreeMap<String, String> {
    let line = params.lines().find_map(|l| l.strip_prefix("RegistryDwords:")).unwrap_or_default();
    let pairs = line.trim().trim_matches('"').split(';').filter_map(|pair| pair.split_once('='));
    pairs.take(64).map(|(key, value)| (shown(key), shown(value))).collect()
}

fn surroundings(machine: &mut Machine, root: &Path) {
    let marks = [".dockerenv", "run/.containerenv"];
    let pods = ["kubepods", "docker", "containerd", "lxc"];
    let groups = text(&root.join("proc/1/cgroup"));
    let by_group = groups.as_ref().is_some_and(|g| pods.iter().any(|pod| g.contains(pod)));
    let container = by_group || marks.iter().any(|mark| root.join(mark).exists());
    machine.host.container = (container || groups.is_some()).then_some(container);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(
            shm("tmpfs /run tmpfs rw 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n"),
            Some(64 << 20)
        );
        assert_eq!(shm("tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n"), None);
        assert_eq!(shm("x /dev/shm y size=99999999999999999999g"), None);
        assert_eq!(kibibytes("Node 0 MemTotal:       1024 kB", "MemTotal:"), Some(1 << 20));
    }

    #[test]
    fn registry_keys_are_read() {
        let keys = registry("DmaRemapPeerMmio: 1\nRegistryDwords: \"ForceP2P=0x11;RMForceP2PType=1\"\n");
        assert_eq!(keys.get("ForceP2P").map(String::as_str), Some("0x11"));
        assert_eq!(registry("RegistryDwords: \"\"").len(), 0);
    }
}
