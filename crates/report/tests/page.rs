//! The page is well-formed, needs nothing from outside, and says what the verdicts say.

use tombolo_report::doctor_page;
use tombolo_topology::{Gpu, LinkClass, Machine, Pairs, Source, read, verdicts};

fn machine(names: &[&str]) -> Machine {
    let source = |name: &&str| {
        let path = format!("{}/../topology/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Source { name: name.rsplit('/').next().unwrap_or(name).into(), text }
    };
    read(&names.iter().map(source).collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"))
}

fn page(machine: &Machine) -> String {
    let page = doctor_page("a <machine>", machine, &verdicts(machine));
    let xml = page.strip_prefix("<!doctype html>\n").unwrap_or_default();
    roxmltree::Document::parse(xml).unwrap_or_else(|error| panic!("{error}\n{xml}"));
    page
}

#[test]
fn the_starting_case_is_drawn_and_judged() {
    let page = page(&machine(&["rtx-pro-6000-x8/topo-m.txt", "rtx-pro-6000-x8/pcie.csv"]));
    for part in [
        "a &lt;machine&gt;",
        "island A · NUMA node 0",
        "island B · NUMA node 1",
        "SYS: the interconnect between NUMA nodes",
        "PCIe 5.0 x16, 63.0 GB/s",
        "between them: NODE",
        "<code>export NCCL_P2P_LEVEL=SYS</code>",
        "<td class=\"cSYS\">SYS</td>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<rect class=\"gpu\"").count(), 8);
}

#[test]
fn nothing_is_fetched_and_nothing_runs() {
    for names in [&["8xh100-nv18.txt"][..], &["2xa6000-q.txt"], &["nccl-8xpro6000.xml"], &["lspci-4x3090.txt"]] {
        let page = page(&machine(names)).replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(word), "{word} in the page of {names:?}");
        }
    }
}

#[test]
fn any_machine_gives_a_page() {
    page(&Machine::default());
    let gpu = |index| Gpu { index, name: Some("<b>&\u{1b}".into()), ..Gpu::default() };
    let links = Pairs::from_fn(40, |a, b| Some(if a == b { LinkClass::Itself } else { LinkClass::Sys }));
    page(&Machine { gpus: (0..40).map(gpu).collect(), links: Some(links), ..Machine::default() });
}
