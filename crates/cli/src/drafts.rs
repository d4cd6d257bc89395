//! Which guesses a model makes of its own tokens: what was asked for, if it can be.

use crate::args::{DraftArgs, DraftBy};
use crate::error::{Error, input};
use crate::limits::DRAFT_MAX;
use crate::load::at_file;
use tombolo_engine::Drafts;
use tombolo_gguf::Gguf;
use tombolo_model::Config;

/// Guesses by what stood before cost nothing but rows, which a step has to spare.
const NGRAM_DRAFTS: usize = 3;

/// How tokens are guessed ahead, and the model as it is then run: without its drafting block where that guesses nothing.
pub(crate) fn choose(args: &DraftArgs, gguf: &Gguf, config: Config, is_cpu: bool) -> Result<(Drafts, Config), Error> {
    let drafts = drafts(args, gguf, &config, is_cpu)?;
    let config = if matches!(drafts, Drafts::Block(_)) { config } else { config.without_draft() };
    Ok((drafts, config))
}

fn drafts(args: &DraftArgs, gguf: &Gguf, config: &Config, is_cpu: bool) -> Result<Drafts, Error> {
    let by_ngram = args.draft_by == Some(DraftBy::Ngram);
    let can = is_cpu && (config.draft.is_some() || by_ngram);
    let most = match args.draft_max {
        Some(n) if n > DRAFT_MAX => return Err(input(format!("--draft-max {n}: {DRAFT_MAX} at most"))),
        Some(n) => n,
        None if can && by_ngram => NGRAM_DRAFTS,
        None if can => 1,
        None => usize::from(args.draft_by.is_some()),
    };
    let asked = args.draft_by.is_some() || args.draft_max.is_some_and(|n| n > 0);
    if asked && most > 0 && !by_ngram && config.draft.is_none() {
        let what = "the model has no block that drafts tokens (MTP); --draft-by ngram needs none";
        return Err(at_file(gguf, &format!("--draft-max {most}: {what}")));
    }
    if asked && !is_cpu && (most > 0 || by_ngram) {
        return Err(input("--draft-max, --draft-by: drafts are not computed on GPUs yet; --device cpu does"));
    }
    Ok(match most {
        0 => Drafts::None,
        most if by_ngram => Drafts::Ngram(most),
        most => Drafts::Block(most),
    })
}
