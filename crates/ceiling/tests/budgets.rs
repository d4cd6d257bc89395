//! What is read off programs: against the published counts of GLM-5, and against the program's own.

use tombolo_ceiling::budget::{Budget, Load};
use tombolo_model::{Config, KvType, Program, Shard, dummy};

fn programs(name: &str, size: usize) -> Vec<Program> {
    let gguf = dummy::preset(name).unwrap().blueprint().open(dummy::SEED).unwrap();
    let config = Config::from_gguf(&gguf).unwrap();
    (0..size).map(|rank| Program::build(&gguf, &config, Shard { rank, size }).unwrap()).collect()
}

fn load(sequences: usize, context: usize) -> Load {
    Load { sequences, rows_each: 1, context, kv: KvType::F16, experts_whole: false }
}

#[test]
fn glm_5_on_eight_ranks_is_as_published() {
    let programs = programs("glm5", 8);
    let budget = Budget::of(&programs[0], &load(1, 1));
    // 6.36 GB a token and rank, with the output matrix and without the embedding's one row.
    assert!((budget.weight_bytes / 6.36e9 - 1.0).abs() < 0.01, "{}", budget.weight_bytes);
    assert_eq!((budget.all_reduces, budget.all_reduce_bytes), (156, 12_288));
    // Eight a layer with experts, seven in the three dense ones, and the head.
    assert_eq!(budget.dependent_ops, 75 * 8 + 3 * 7 + 1);
    // 54.3 GB are the eighth and what all hold, without the drafting block; the embedding is whole.
    let held = programs[0].weight_bytes() as f64;
    assert!((held / 56.6e9 - 1.0).abs() < 0.03, "{held}");
}

#[test]
fn caches_are_read_as_published() {
    let program = &programs("glm5", 8)[0];
    // At 32K: 2048 chosen of the latents, 0.18 GB, and all keys of the index, 0.65 GB.
    let far = Budget::of(program, &load(1, 32 << 10));
    assert!((far.kv_bytes / 0.184e9 - 1.0).abs() < 0.01, "{}", far.kv_bytes);
    assert!((far.index_bytes / 0.654e9 - 1.0).abs() < 0.01, "{}", far.index_bytes);
    let near = Budget::of(program, &load(1, 2048));
    assert_eq!(near.index_bytes, 0.0);
    let many = Budget::of(program, &load(16, 32 << 10));
    assert!((many.kv_bytes / far.kv_bytes - 16.0).abs() < 1e-9);
    // 102 of 256 experts for 16 tokens.
    assert!(many.weight_bytes / far.weight_bytes > 3.0 && many.weight_bytes / far.weight_bytes < 8.0);
}

/// One token reads what the program says it reads, on any number of ranks whose experts are cut.
#[test]
fn weights_agree_with_the_program() {
    for (name, sizes) in [("8b", vec![1, 2, 4, 8]), ("tiny", vec![1, 2]), ("glm5", vec![1, 2, 4, 8])] {
        for size in sizes {
            for program in programs(name, size) {
                let budget = Budget::of(&program, &load(1, 1));
                let counted = program.weight_bytes_per_token() as f64;
                assert!((budget.weight_bytes / counted - 1.0).abs() < 1e-9, "{name} on {size}");
            }
        }
    }
}

#[test]
fn dependent_operations_are_those_of_the_fused_chains() {
    let of = |name: &str| Budget::of(&programs(name, 1)[0], &load(1, 1)).dependent_ops;
    assert_eq!(of("8b"), 32 * 5 + 1);
    assert_eq!(of("30b-a3b"), 48 * 6 + 1);
}
