//! The demo model: what a stranger's first command does, and whether the model still knows what it learnt.

mod common;

use common::{run_with_input, scratch, succeed, text};
use safetensors::SafeTensors;
use std::path::Path;
use tombolo_gguf::Gguf;
use tombolo_text::Tokenizer;

/// 1 Kings 6:15 and on, in the words of 1611: a passage that the model was not trained on.
const HELD_OUT: &str = "And he built the walls of the house within with boards of cedar, both the floor of the house, and the walls of \
    the cieling: and he covered them on the inside with wood, and covered the floor of the house with planks of \
    fir. And he built twenty cubits on the sides of the house, both the floor and the walls with boards of cedar: \
    he even built them for it within, even for the oracle, even for the most holy place. And the house, that is, \
    the temple before it, was forty cubits long. And the cedar of the house within was carved with knops and open \
    flowers: all was cedar; there was no stone seen.";

/// Bits per byte of it by the model that was trained, in PyTorch with the weights of the file, equal scores of the indexer
/// in the order of positions. Without the indexer it would be 1.22601.
const REFERENCE: f64 = 1.229214;

#[test]
fn a_first_command_goes_on_with_a_text() {
    let args = ["run", "-p", "Once upon a time", "--json", "--device", "cpu", "--seed", "1"];
    let ran = succeed(&args);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    // The text begins a document; there is no template around it.
    assert_eq!((&json["tokens"].as_array().unwrap().len(), &json["finish"]), (&256, &"length".into()));
    let story = json["text"].as_str().unwrap();
    assert!(story.split_whitespace().filter(|word| ["the", "of", "and", "to"].contains(word)).count() > 10, "{story}");
    assert!(ran.err.lines().next().unwrap().contains("not for answers"), "{}", ran.err);
    let again: serde_json::Value = serde_json::from_str(&succeed(&args).out).unwrap();
    assert_eq!(again["tokens"], json["tokens"]);
}

#[test]
fn held_out_text_is_as_little_surprising_as_after_training() {
    let gguf = Gguf::open(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo.gguf"))).unwrap();
    let tokenizer = Tokenizer::from_metadata(gguf.metadata()).unwrap();
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    ids.extend(tokenizer.encode(HELD_OUT, true).unwrap());
    // The indexer chooses among more than it keeps.
    assert!(ids.len() > 2 * 64, "{}", ids.len());
    let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let bits = |arith: &str, ranks: &str| {
        let out = scratch(&format!("held-out-{arith}-{ranks}.safetensors"));
        let args =
            ["logits", "--tokens", &list, "--out", text(&out), "--device", "cpu", "-tp", ranks, "--arith", arith];
        succeed(&args);
        bits_per_byte(&std::fs::read(out).unwrap(), &ids)
    };
    for (arith, ranks, most) in [
        ("f32", "1", 1e-5),
        ("f32", "2", 1e-5),
        ("f32", "4", 1e-5),
        ("production", "1", 0.02),
        ("production", "4", 0.02),
    ] {
        let found = bits(arith, ranks);
        assert!((found - REFERENCE).abs() <= most, "{arith}, {ranks} ranks: {found}");
    }
}

/// How many bits the model needs for each byte of the text, from the logits that it gives.
fn bits_per_byte(file: &[u8], ids: &[u32]) -> f64 {
    let file = SafeTensors::deserialize(file).unwrap();
    let logits = file.tensor("logits").unwrap();
    let values: Vec<f64> = logits.data().as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
    let rows = values.chunks(logits.shape()[1]).zip(&ids[1..]);
    let nats = rows.map(|(row, &next)| row.iter().map(|l| l.exp()).sum::<f64>().ln() - row[next as usize]);
    nats.sum::<f64>() / std::f64::consts::LN_2 / HELD_OUT.len() as f64
}

/// Rounded activations too: a sum in parts differs by less than what a choice hangs on.
#[test]
fn ranks_write_the_same_story() {
    let story = |ranks: &str, arith: &str| {
        let args = ["run", "-p", "Once upon a time", "-n", "160", "--temp", "0", "--json", "--device", "cpu"];
        let ran = succeed(&[args.as_slice(), &["-tp", ranks, "--arith", arith]].concat());
        serde_json::from_str::<serde_json::Value>(&ran.out).unwrap()["tokens"].clone()
    };
    for arith in ["f32", "production"] {
        let whole = story("1", arith);
        // The indexer chooses: there are more positions than it keeps.
        assert!(whole.as_array().unwrap().len() == 160);
        for ranks in ["2", "4"] {
            assert_eq!(story(ranks, arith), whole, "{ranks} ranks, {arith}");
        }
    }
}

#[test]
fn a_pipe_is_gone_on_with() {
    let ran = run_with_input(&["run", "-n", "8", "--temp", "0", "--device", "cpu"], b"In the beginning God created");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // What is gone on with is shown on a terminal only.
    assert!(!ran.out.contains("beginning") && ran.out.trim().len() > 8, "{}", ran.out);
}

/// Greedy or not, on any number of ranks, in either arithmetic: drafts are confirmed or thrown away, nothing else.
#[test]
fn drafts_change_no_token() {
    let run = |more: &[&str]| -> serde_json::Value {
        let args = ["run", "-p", "And the king said", "-n", "96", "--json", "--device", "cpu"];
        serde_json::from_str(&succeed(&[&args, more].concat()).out).unwrap()
    };
    for how in [&["--temp", "0"][..], &["--seed", "7"], &["--seed", "7", "--temp", "1", "--top-k", "0", "--top-p", "1"]]
    {
        for ranks in ["1", "2", "4"] {
            let mut accepted = Vec::new();
            let with = |drafts: &str| run(&[how, &["-tp", ranks, "--draft-max", drafts]].concat());
            let plain = with("0");
            assert!(plain.get("drafts").is_none());
            for drafts in ["1", "3"] {
                let drafting = with(drafts);
                assert_eq!(drafting["tokens"], plain["tokens"], "{how:?}, {ranks} ranks, {drafts} drafts");
                let of = |key: &str| drafting["drafts"][key].as_f64().unwrap();
                assert!((of("tokens_per_step") > 1.2) && of("accepted") < of("drafted"), "{drafting}");
                accepted.push(of("accepted") / of("drafted"));
            }
            // A guess of a guess is worse.
            assert!(accepted[0] > accepted[1] && accepted[0] > 0.25, "{accepted:?}");
        }
    }
    let arith = |drafts: &str| run(&["--arith", "f32", "--temp", "0", "--draft-max", drafts]);
    assert_eq!(arith("2")["tokens"], arith("0")["tokens"]);
}

#[test]
fn drafts_that_cannot_be_are_refused() {
    let check = |args: &[&str], want: &str| {
        let ran = common::run(args);
        assert_eq!((ran.code, ran.err.lines().last().unwrap()), (Some(2), want));
    };
    let args = ["run", "-p", "x", "--device", "cpu", "--draft-max"];
    check(&[&args[..], &["17"]].concat(), "error: --draft-max 17: 16 at most");
    let llama = common::golden("tiny-llama.gguf");
    let want = format!(
        "error: {}: --draft-max 1: the model has no block that drafts tokens (MTP); --draft-by ngram needs none",
        text(&llama)
    );
    check(&["run", text(&llama), "--tokens", "1", "--device", "cpu", "--draft-max", "1"], &want);
}
