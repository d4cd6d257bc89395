//! The input block, and that a machine without a GPU is told so: no GPU needed.

use proptest::prelude::*;
use std::sync::Arc;
use tombolo_cuda::input::{FROM_PREVIOUS, InputLayout, NO_ROW, is_decode};
use tombolo_cuda::{LoadError, NoGpu, Options, devices, load};
use tombolo_gguf::Gguf;
use tombolo_model::{Capacity, Config, Row, Sampling, Sequence, Step, Token};

fn step(lengths: &[usize], table_len: usize) -> Step {
    let mut step = Step::default();
    for (s, &length) in lengths.iter().enumerate() {
        let table = (0..table_len as u32).map(|b| 100 * s as u32 + b).collect();
        step.sequences.push(Sequence { tables: vec![table] });
        for i in 0..length {
            let token = if i == 0 { Token::Prev(s as u32) } else { Token::Host(i as u32) };
            let sample = (i + 1 == length).then_some(Sampling { temperature: 0.5, ..Sampling::GREEDY });
            step.rows.push(Row { token, position: 7 + i as u32, sequence: s as u32, sample, draft: false });
        }
    }
    step
}

proptest! {
    #[test]
    fn what_is_written_is_what_the_step_says(
        lengths in prop::collection::vec(1usize..9, 1..5),
        table_len in 1usize..5,
        padding in 0usize..4,
        tile_rows in 1usize..6,
    ) {
        let step = step(&lengths, table_len);
        let (rows, sequences, logits) = (step.rows.len(), step.sequences.len(), step.logits_rows());
        let layout = InputLayout::new(rows + padding, sequences + padding, logits + padding, table_len + padding, 1);
        let mut block = vec![0xdead_beef; layout.bytes / 4];
        let tiles = layout.write(&step, 5, None, tile_rows, &mut block);
        prop_assert_eq!(&block[..4], &[rows as u32, sequences as u32, logits as u32, 5]);
        let mut next = 0;
        for (i, row) in step.rows.iter().enumerate() {
            let token = match row.token { Token::Host(t) => t, Token::Prev(p) => FROM_PREVIOUS | p };
            prop_assert_eq!(block[layout.tokens / 4 + i], token);
            prop_assert_eq!(block[layout.positions / 4 + i], row.position);
            prop_assert_eq!(block[layout.sequence_of / 4 + i], row.sequence);
            if row.sample.is_some() {
                prop_assert_eq!(block[layout.logits_rows / 4 + next], i as u32);
                prop_assert_eq!(block[layout.inverse_temperatures / 4 + next], 2.0f32.to_bits());
                next += 1;
            }
        }
        for i in rows..rows + padding {
            prop_assert_eq!(block[layout.positions / 4 + i], NO_ROW);
        }
        for (s, sequence) in step.sequences.iter().enumerate() {
            let at = layout.tables[0] / 4 + s * layout.table_len;
            prop_assert_eq!(&block[at..at + table_len], &sequence.tables[0][..]);
        }
        // Tiles cover the rows in order, none crosses a sequence.
        let mut covered = 0;
        for t in 0..tiles {
            let (first, count) = (block[layout.tiles / 4 + 2 * t] as usize, block[layout.tiles / 4 + 2 * t + 1] as usize);
            prop_assert_eq!(first, covered);
            prop_assert!(count >= 1 && count <= tile_rows);
            prop_assert!(step.rows[first..first + count].iter().all(|r| r.sequence == step.rows[first].sequence));
            covered += count;
        }
        prop_assert_eq!(covered, rows);
        prop_assert!([layout.tokens, layout.positions, layout.tiles, layout.tables[0], layout.bytes].iter().all(|o| o % 16 == 0));
    }
}

#[test]
fn tokens_that_the_host_has_learnt_replace_references() {
    let step = step(&[1, 1], 1);
    let layout = InputLayout::new(2, 2, 2, 1, 1);
    let mut block = vec![0; layout.bytes / 4];
    layout.write(&step, 0, Some(&[41, 42]), 1, &mut block);
    assert_eq!(&block[layout.tokens / 4..][..2], &[41, 42]);
}

#[test]
fn a_decode_step_has_one_row_a_sequence() {
    assert!(is_decode(&step(&[1, 1, 1], 1)));
    assert!(!is_decode(&step(&[1, 2], 1)));
    let mut silent = step(&[1, 1], 1);
    silent.rows[1].sample = None;
    assert!(!is_decode(&silent));
}

#[test]
fn a_machine_without_a_gpu_is_a_value_with_a_reason() {
    let Err(reason) = devices() else { return };
    let text = reason.to_string();
    assert!(text.starts_with("no GPU") && !text.contains('\n'), "{text}");

    let gguf = Arc::new(Gguf::from_bytes(include_bytes!("../../model/tests/data/tiny-llama.gguf").to_vec()).unwrap());
    let config = Config::from_gguf(&gguf).unwrap();
    let capacity = Capacity::new(16, 1, 64);
    match load(gguf.clone(), &config, 1, capacity, &Options::default()) {
        Err(LoadError::NoGpu(
            NoGpu::NoKernels
            | NoGpu::StaleKernels { .. }
            | NoGpu::NoLibrary
            | NoGpu::NoDevice
            | NoGpu::NotStarted { .. },
        )) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a model was loaded without a GPU"),
    }
    // A fault of the model or the command line is found first.
    let two = Options { devices: vec![0], ..Options::default() };
    assert!(matches!(load(gguf, &config, 2, capacity, &two), Err(LoadError::Devices { tp: 2, named: 1 })));
}
