//! The page is well-formed, needs nothing from outside, and says what the verdicts say.

use tombolo_ceiling::advice::advice;
use tombolo_ceiling::compare;
use tombolo_ceiling::placement::{Basis, Model, Wish, placements};
use tombolo_model::{Config, KvType};
use tombolo_report::{PlanView, doctor_page, plan_page};
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
    sound(doctor_page("a <machine>", machine, &verdicts(machine)))
}

fn sound(page: String) -> String {
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

/// Letters of sans-serif text are a little over half as wide as high, most of them.
#[test]
fn every_label_fits_its_drawing() {
    for class in ["SYS", "PHB", "NV4"] {
        let row = format!("GPU0\t X \t{class}\t0-7\nGPU1\t{class}\t X \t0-7\n");
        let text = format!("\tGPU0\tGPU1\tCPU Affinity\n{row}");
        let pair = read(&[Source { name: "pasted".into(), text }]).unwrap();
        for machine in [pair, machine(&["4x4090-two-sockets.txt"]), machine(&["8x4090-switches.txt"])] {
            let page = page(&machine);
            let document =
                roxmltree::Document::parse(page.strip_prefix("<!doctype html>\n").unwrap_or_default()).unwrap();
            let svg = document.descendants().find(|n| n.tag_name().name() == "svg").unwrap();
            let number =
                |node: roxmltree::Node<'_, '_>, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
            for text in svg.descendants().filter(|n| n.tag_name().name() == "text") {
                let label = text.text().unwrap_or_default();
                let end = number(text, "x") + label.chars().count() as f64 * number(text, "font-size") * 0.52;
                assert!(end <= number(svg, "width"), "{label} ends at {end}");
            }
        }
    }
}

#[test]
fn findings_come_before_the_drawing() {
    let page = page(&machine(&["4x4090-two-sockets.txt"]));
    let (finding, drawing) = (page.find("<li><b>WARNING</b>"), page.find("<svg"));
    assert!(finding.is_some() && finding < drawing, "{page}");
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

#[test]
fn a_plan_is_drawn_with_what_was_observed() {
    let machine = machine(&["rtx-pro-6000-x8/topo-m.txt", "rtx-pro-6000-x8/pcie.csv", "rtx-pro-6000-x8/observed.json"]);
    let named = tombolo_ceiling::shape::named("GLM-5").unwrap();
    let recipe = tombolo_ceiling::shape::recipe(named.recipe).unwrap();
    let gguf = named.blueprint(recipe).open(1).unwrap();
    let config = Config::from_gguf(&gguf).unwrap();
    let (model, basis) = (Model::new(&gguf, &config), Basis::stored());
    let wish = Wish { context: 4096, batch: 32, kv: KvType::F16, speculation: None, prompt: 512, chunk: 128 };
    let (placed, illegal) = placements(&model, &machine, &wish, &basis).unwrap();
    let advice = advice(&model, &machine, &wish, &basis, &placed).unwrap();
    let observed = compare::read(r#"{"config": "a <step>", "tok_s": 43, "all_reduce_us": 127}"#).unwrap();
    let compared = [compare::compare(&observed[0], &placed[0].one, 158)];
    let view = PlanView {
        title: "GLM-5 on <cards>",
        notes: &["a note".into()],
        machine: &machine,
        placements: &placed,
        illegal: &illegal,
        advice: &advice,
        observed: Some((&placed[0], &compared, &[])),
    };
    let page = sound(plan_page(&view));
    for part in [
        "GLM-5 on &lt;cards&gt;",
        "a &lt;step&gt;",
        "23.26 ms",
        "launch and dependency",
        "TP 8",
        "TP 3: ",
        "does not fit",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Observed in two parts, the ceiling whole, and its seven terms.
    assert_eq!(page.matches("height=\"16\" rx=\"2\"").count(), 2 + 1 + 7);
    // Nothing observed, and no placement at all.
    sound(plan_page(&PlanView { observed: None, ..view }));
    let none = PlanView {
        title: "",
        notes: &[],
        machine: &Machine::default(),
        placements: &[],
        illegal: &[],
        advice: &[],
        observed: None,
    };
    sound(plan_page(&none));
}
