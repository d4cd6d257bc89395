//! The kernel's file systems, from captured trees: a file of lines `path = content`, `path -> target` or `path/` is laid
//! out in a folder of the test run.

use std::path::{Path, PathBuf};
use tombolo_topology::discover::{Discovery, discover_under};
use tombolo_topology::{Iommu, verdicts};

fn laid_out(name: &str, change: impl Fn(&str) -> String) -> Discovery {
    let source = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = change(&std::fs::read_to_string(&source).unwrap_or_else(|error| panic!("{source}: {error}")));
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "");
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{thread}-{}", std::process::id(), text.len()));
    let _ = std::fs::remove_dir_all(&root);
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        lay(&root, line);
    }
    discover_under(&root)
}

fn lay(root: &Path, line: &str) {
    let make = |path: &Path| std::fs::create_dir_all(path).unwrap_or_else(|error| panic!("{line}: {error}"));
    if let Some((path, target)) = line.split_once(" -> ") {
        let path: PathBuf = root.join(path);
        make(path.parent().unwrap_or(root));
        std::os::unix::fs::symlink(target, path).unwrap_or_else(|error| panic!("{line}: {error}"));
    } else if let Some((path, content)) = line.split_once(" = ") {
        let path = root.join(path);
        make(path.parent().unwrap_or(root));
        std::fs::write(path, content.replace("\\n", "\n").replace("\\t", "\t") + "\n")
            .unwrap_or_else(|error| panic!("{line}: {error}"));
    } else {
        make(&root.join(line));
    }
}

fn whole(name: &str) -> Discovery {
    laid_out(name, |text| text.to_string())
}

#[test]
fn a_tree_with_two_sockets_and_a_switch() {
    let found = whole("sysfs-4xl40s.txt");
    let m = &found.machine;
    let row = |a| (0..4).map(|b| m.class(a, b).map_or("?".into(), |c| c.to_string())).collect::<Vec<_>>().join(" ");
    assert_eq!(
        [row(0), row(1), row(2), row(3)],
        ["X PIX NODE SYS", "PIX X NODE SYS", "NODE NODE X SYS", "SYS SYS SYS X"]
    );
    assert_eq!(m.islands(), Some(vec![vec![0, 1, 2], vec![3]]));
    assert_eq!(m.uplinks()[0].bridge.as_deref(), Some("0000:40:01.1"));
    let g = &m.gpus[3];
    assert_eq!((g.name.as_deref(), g.pci_bus_id.as_deref()), (Some("NVIDIA L40S"), Some("0000:c1:00.0")));
    assert_eq!((g.pcie.gen_now, g.pcie.gen_gpu, g.pcie.width_now, g.numa_node), (Some(1), Some(4), Some(16), Some(1)));
    assert_eq!(g.cpu_affinity.as_deref(), Some("16-31"));
    let host = &m.host;
    assert_eq!((host.iommu, host.sockets, host.threads), (Some(Iommu::Translated), Some(2), Some(4)));
    assert_eq!((host.numa.len(), host.numa[1].distances.clone()), (2, vec![32, 10]));
    assert_eq!((host.shm_bytes, host.memlock_bytes), (Some(64 << 20), Some(8 << 20)));
    assert_eq!(
        (host.driver.as_deref(), host.container, host.virtual_machine),
        (Some("580.95.05"), Some(true), Some(false))
    );
    let rules: Vec<&str> = verdicts(m).iter().map(|v| v.rule).collect();
    for rule in ["iommu", "sockets", "shared-memory", "memlock", "nccl-path", "custom-all-reduce"] {
        assert!(rules.contains(&rule), "{rule} not in {rules:?}");
    }
    assert!(found.looked.iter().any(|l| !l.found && l.what.contains("read by root only")), "{:?}", found.looked);
}

#[test]
fn every_line_of_a_tree_may_be_missing() {
    let lines = std::fs::read_to_string(format!("{}/tests/data/sysfs-4xl40s.txt", env!("CARGO_MANIFEST_DIR")))
        .unwrap_or_default();
    let whole = whole("sysfs-4xl40s.txt").machine;
    for dropped in 0..lines.lines().count() {
        let part = laid_out("sysfs-4xl40s.txt", |text| {
            let kept = text.lines().enumerate().filter(|(at, _)| *at != dropped).map(|(_, l)| l);
            kept.collect::<Vec<_>>().join("\n")
        });
        for (a, b, class) in part.machine.pairs() {
            let place = |at: usize| whole.gpus.iter().position(|g| g.pci_bus_id == part.machine.gpus[at].pci_bus_id);
            let was = place(a).zip(place(b)).and_then(|(a, b)| whole.class(a, b));
            assert!(class.is_none() || class == was, "without line {}: {a} to {b} is {class:?}", dropped + 1);
        }
    }
}

#[test]
fn nothing_at_all_is_a_value_with_reasons() {
    let found = discover_under(Path::new("/nowhere/at/all"));
    assert!(found.machine.is_empty());
    assert!(
        found.looked.len() >= 4 && found.looked.iter().all(|l| !l.found && !l.what.is_empty()),
        "{:?}",
        found.looked
    );
}
