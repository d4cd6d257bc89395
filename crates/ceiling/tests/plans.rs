//! Plans of the starting case: eight RTX PRO 6000 on two sockets, and what was observed on them.

use tombolo_ceiling::advice::{advice, best};
use tombolo_ceiling::compare::{self, compare, infer, read};
use tombolo_ceiling::links::{Fabric, assumed_access, peer_access};
use tombolo_ceiling::outside;
use tombolo_ceiling::placement::{Basis, Model, Placement, PlanError, Wish, chosen, placements};
use tombolo_ceiling::shape;
use tombolo_model::{Config, KvType};
use tombolo_topology::{Gpu, LinkClass, Machine, Pairs, Pcie};

fn machine() -> Machine {
    let gpu = |index: u32| Gpu {
        index,
        name: Some("NVIDIA RTX PRO 6000 Blackwell Server Edition".into()),
        memory_bytes: Some(96 << 30),
        memory_gb_s: Some(1597.0),
        pcie: Pcie { gen_max: Some(5), width_now: Some(16), ..Pcie::default() },
        ..Gpu::default()
    };
    let class = |a: usize, b: usize| match (a == b, a / 4 == b / 4) {
        (true, _) => LinkClass::Itself,
        (_, true) => LinkClass::Node,
        _ => LinkClass::Sys,
    };
    let links = Pairs::from_fn(8, |a, b| Some(class(a, b)));
    Machine { gpus: (0..8).map(gpu).collect(), links: Some(links), ..Machine::default() }
}

const WISH: Wish = Wish { context: 4096, batch: 32, kv: KvType::F16, speculation: None, prompt: 2048, chunk: 512 };

fn with_model<R>(name: &str, run: impl FnOnce(&Model) -> R) -> R {
    let named = shape::named(name).unwrap();
    let gguf = named.blueprint(shape::recipe(named.recipe).unwrap()).open(1).unwrap();
    let config = Config::from_gguf(&gguf).unwrap();
    run(&Model::new(&gguf, &config))
}

#[test]
fn glm_5_goes_on_eight() {
    with_model("GLM-5", |model| {
        let (placed, illegal) = placements(model, &machine(), &WISH, &Basis::stored()).unwrap();
        let top = best(&placed).unwrap();
        assert_eq!((top.tensor_parallel, top.replicas, top.fits), (8, 1, true));
        assert_eq!((top.budget.all_reduces, top.budget.all_reduce_bytes), (156, 12_288));
        assert!((top.budget.weight_bytes / 6.36e9 - 1.0).abs() < 0.01);
        assert!((100.0..250.0).contains(&top.tok_s_one), "{}", top.tok_s_one);
        assert!((top.one.terms.iter().map(|t| t.ms).sum::<f64>() - top.one.ms).abs() < 1e-9);
        assert!(top.memory.context_max > 100_000 && top.memory.batch_max > 8, "{:?}", top.memory);
        // Weights of 404 GiB fit on no half of them.
        assert!(placed.iter().filter(|p| p.tensor_parallel < 4 && p.pipeline == 1).all(|p| !p.fits));
        // Heads, 64, divide by no odd number: the tensor and what is legal are said.
        let three = illegal.iter().find(|i| i.tensor_parallel == 3).unwrap();
        assert!(three.why.contains("blk.") && three.why.contains("[1, 2, 4, 8]"), "{}", three.why);
        let whole = placed.iter().find(|p| p.experts_whole && p.tensor_parallel == 8).unwrap();
        assert!(whole.cannot_run_yet.is_some() && whole.tok_s_one < top.tok_s_one);
        assert!(placed.iter().filter(|p| p.pipeline > 1).all(|p| p.cannot_run_yet.is_some()));
    });
}

#[test]
fn the_starting_case_loses_to_all_reduces() {
    let observed = read(
        r#"{"observed": [
            {"config": "CUDA graph, NCCL default", "tok_s": 43, "step_ms": 23, "all_reduce_us": 127, "all_reduce_calls": 158},
            {"config": "CUDA graph, NCCL_PROTO=LL", "tok_s": 57.5, "step_ms": 17.4}]}"#,
    )
    .unwrap();
    with_model("GLM-5", |model| {
        let (machine, basis) = (machine(), Basis::stored());
        let (placed, _) = placements(model, &machine, &WISH, &basis).unwrap();
        let top = best(&placed).unwrap();
        let found = compare(&observed[0], &top.one, 158);
        assert!(found.all_reduce_share.unwrap() >= 0.8, "{found:?}");
        assert!(found.named.starts_with("all-reduce"), "{}", found.named);
        let fabric = Fabric::of(&machine, &chosen(&machine, 8)).unwrap();
        let inferred = infer(&observed, &top.one, 158, &fabric, 12_288, &basis.params);
        let ll = inferred.iter().find(|i| i.what.contains("57.5")).expect("the LL figure does not fit");
        assert!(ll.what.contains("waiting for other ranks") && ll.arithmetic.len() == 3, "{ll:?}");
        // What is left beside the all-reduces is less than reading the weights takes.
        assert!(inferred.iter().any(|i| i.what.contains("profile")), "{inferred:?}");
    });
}

#[test]
fn what_a_change_would_give() {
    with_model("GLM-5", |model| {
        let (machine, basis) = (machine(), Basis::stored());
        let (placed, _) = placements(model, &machine, &WISH, &basis).unwrap();
        let found = advice(model, &machine, &WISH, &basis, &placed).unwrap();
        let of = |what: &str| found.iter().find(|a| a.what.contains(what)).unwrap_or_else(|| panic!("no {what}"));
        assert!(of("without P2P").gain_one.unwrap() < 0.0);
        assert!(of("twice the memory").gain_one.unwrap() > 0.3);
        assert!(of("NCCL").gain_one.unwrap() < -0.3);
        assert!(of("speculation").gain_one.unwrap() > 0.2 && of("speculation").note.contains("cannot run on GPUs yet"));
    });
}

#[test]
fn predictions_that_nothing_was_fitted_to_are_near() {
    let found = outside::predictions(&Basis::stored());
    for want in [57.5, 88.0, 13.62, 2.24, 2.43] {
        let o = found.iter().find(|o| o.measured == want).unwrap();
        assert!(o.error.abs() < 0.35, "{}: {} predicted", o.what, o.predicted);
    }
}

#[test]
fn all_named_models_can_be_planned() {
    for named in &shape::NAMED {
        for recipe in shape::RECIPES {
            let gguf = named.blueprint(recipe).open(1).unwrap();
            let config = Config::from_gguf(&gguf).unwrap_or_else(|e| panic!("{} {}: {e}", named.name, recipe.name));
            let sizes = tombolo_model::Program::legal_sizes(&gguf, &config);
            assert!(sizes.contains(&1) && sizes.contains(&4), "{} {}: {sizes:?}", named.name, recipe.name);
        }
    }
    // 21 of 78 layers choose.
    with_model("GLM-5.2", |model| {
        let indexer = model.config.latent.as_ref().unwrap().indexer.as_ref().unwrap();
        let trunk = &indexer.full[..model.config.layers()];
        assert_eq!(trunk.iter().filter(|f| **f).count(), 21);
    });
}

#[test]
fn configs_are_read_or_refused() {
    let qwen = r#"{"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536, "vocab_size": 151936, "max_position_embeddings": 40960}"#;
    let recipe = shape::recipe("q4_k_m").unwrap();
    let mut named = shape::named("Qwen3-235B").unwrap().blueprint(recipe);
    let mut read = shape::from_config(qwen, "Qwen3-235B", recipe).unwrap();
    named.metadata.sort_by(|a, b| a.0.cmp(&b.0));
    read.metadata.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(read, named);
    for bad in ["", "{}", "[]", r#"{"model_type": "bert"}"#, r#"{"model_type": "llama", "hidden_size": -1}"#] {
        assert!(shape::from_config(bad, "x", recipe).is_err(), "{bad}");
    }
}

#[test]
fn what_is_not_known_is_said() {
    with_model("Llama-70B", |model| {
        let basis = Basis::stored();
        assert_eq!(placements(model, &Machine::default(), &WISH, &basis).unwrap_err(), PlanError::NoGpu);
        let mut unnamed = machine();
        unnamed.gpus[3].memory_gb_s = None;
        let error = placements(model, &unnamed, &WISH, &basis).unwrap_err();
        assert_eq!(error, PlanError::UnknownCard { gpu: 3 });
        let mut apart = machine();
        apart.links = None;
        assert!(matches!(placements(model, &apart, &WISH, &basis), Err(PlanError::Links(_))));
    });
}

#[test]
fn observations_without_a_time_are_refused() {
    assert!(compare::read(r#"{"tok_s": 43}"#).is_ok());
    for bad in ["", "3", "[]", "{}", r#"[{"config": "x"}]"#, r#"{"tok_s": 0}"#, r#"{"observed": [{"tok_s": "fast"}]}"#]
    {
        assert!(compare::read(bad).is_err(), "{bad}");
    }
}

#[test]
fn cards_whose_driver_withholds_peer_access_go_through_the_host() {
    let text = "GPU0 GPU1\nGPU0 X PHB\nGPU1 PHB X\n";
    let source = tombolo_topology::Source { name: "topo-m.txt".into(), text: text.into() };
    let machine = |card: &str| {
        let mut machine = tombolo_topology::read(std::slice::from_ref(&source)).unwrap();
        assert!(tombolo_topology::gpus::name(&mut machine, card));
        machine
    };
    let (geforce, pro) = (machine("NVIDIA GeForce RTX 4090"), machine("NVIDIA RTX A6000"));
    assert_eq!((peer_access(&geforce, 0, 1), peer_access(&pro, 0, 1)), (Some(false), None));
    assert!(assumed_access(&geforce).unwrap().contains("taken to be off"));
    assert!(assumed_access(&pro).unwrap().contains("taken to be on"));
    // A test with data says more than a table of cards.
    let mut patched = geforce.clone();
    patched.p2p.tested =
        Some(tombolo_topology::Pairs::from_fn(2, |a, b| (a != b).then_some(tombolo_topology::P2pTest::Right)));
    assert_eq!((peer_access(&patched, 0, 1), assumed_access(&patched)), (Some(true), None));
    with_model("Llama-70B", |model| {
        let (placed, _) = placements(model, &geforce, &WISH, &Basis::stored()).unwrap();
        let two = placed.iter().find(|p| p.tensor_parallel == 2).unwrap();
        assert!(two.all_reduce.by.contains("pinned host memory"), "{}", two.all_reduce.by);
    });
}

#[test]
fn a_model_that_does_not_fit_is_told_how_many_cards_it_needs() {
    with_model("Kimi-K2", |model| {
        let mut small = machine();
        small.gpus.truncate(4);
        small.links = Some(Pairs::from_fn(4, |a, b| machine().class(a, b)));
        let (placed, _) = placements(model, &small, &WISH, &Basis::stored()).unwrap();
        let needs = |p: &Placement| p.memory.weights + p.memory.kv_one + p.memory.rest;
        assert!(placed.iter().all(|p| !p.fits), "{placed:?}");
        assert!(placed.iter().map(needs).is_sorted());
        let found = advice(model, &small, &WISH, &Basis::stored(), &placed).unwrap();
        assert!(found.len() == 1 && found[0].what == "4 more of the same card: the model fits, as TP 8", "{found:?}");
        assert_eq!(found[0].gain_one, None);
    });
}

#[test]
fn models_are_known_however_they_are_written() {
    for name in ["GLM-5", "glm5", "GLM_5", "zai-org/GLM-5", "llama70b", "Llama 70B", "deepseek-ai/DeepSeek-V3"] {
        assert!(shape::named(name).is_some(), "{name}");
    }
    assert!(shape::named("GLM-50").is_none() && shape::named("").is_none());
}

#[test]
fn observations_that_contradict_themselves_are_said_to() {
    let wrong = read(r#"{"tok_s": 57.5, "step_ms": 3}"#).unwrap_err();
    assert!(wrong.to_string().contains("57.5 tok/s and 3 ms"), "{wrong}");
    with_model("GLM-5", |model| {
        let (machine, basis) = (machine(), Basis::stored());
        let (placed, _) = placements(model, &machine, &WISH, &basis).unwrap();
        let top = best(&placed).unwrap();
        let fabric = Fabric::of(&machine, &chosen(&machine, 8)).unwrap();
        // All-reduces of a prompt beside a step of decoding.
        let observed = read(r#"[{"step_ms": 17.4, "all_reduce_us": 630}, {"tok_s": 4000}]"#).unwrap();
        let found = compare(&observed[0], &top.one, 158);
        assert_eq!((found.all_reduce_ms, found.losses.len()), (None, 1));
        assert!(found.losses.iter().all(|(_, seen, _)| *seen >= 0.0), "{found:?}");
        assert_eq!(found.observed.config, "observation 1");
        let inferred = infer(&observed, &top.one, 158, &fabric, 12_288, &basis.params);
        assert!(inferred.len() == 1 && inferred[0].what.contains("longer than the step"), "{inferred:?}");
        assert!(compare(&observed[1], &top.one, 158).named.starts_with("quicker than the ceiling"));
    });
}
