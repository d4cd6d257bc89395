//! Compiled constraints: made off the threads that serve connections, a few at once and each within its time, and kept for
//! the next request that asks for the same. Nothing is written to disk.

use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::limits::{GRAMMAR_SECONDS, GRAMMAR_WAIT_SECONDS, GRAMMARS_AT_ONCE, GRAMMARS_KEPT, GRAMMARS_KEPT_BYTES};
use crate::model::Model;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tombolo_text::grammar::{Grammar, GrammarError, Grammars, Source};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Compiler {
    /// Made with the first constraint: most servers never see one.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    kept: Mutex<Kept<Grammar>>,
    places: Arc<Semaphore>,
}

impl Compiler {
    pub(crate) fn new() -> Self {
        let kept = Kept::new(GRAMMARS_KEPT, GRAMMARS_KEPT_BYTES);
        Self { grammars: OnceLock::new(), kept: Mutex::new(kept), places: Arc::new(Semaphore::new(GRAMMARS_AT_ONCE)) }
    }

    /// The compiled constraint.
    pub(crate) async fn compile(
        self: &Arc<Self>,
        model: &'static Model,
        constraint: &Constraint,
    ) -> Result<Arc<Grammar>, ApiError> {
        if let Some(grammar) = self.kept().find(&constraint.source) {
            return Ok(grammar);
        }
        let Some(tokenizer) = &model.tokenizer else {
            let message = "this model has no vocabulary, so its answers cannot be constrained";
            return Err(ApiError::field(&constraint.field, message));
        };
        let place = timeout(Duration::from_secs(GRAMMAR_WAIT_SECONDS), self.places.clone().acquire_owned()).await;
        let place = place.map_err(|_| ApiError::unavailable("overloaded", "too many constraints are compiled", 1))?;
        let place = place.map_err(|_| ApiError::stopping())?;
        let broken = |_| ApiError::internal("a fault of the server");
        // That the vocabulary is made ready for the first of all is not this one's fault.
        let compiler = self.clone();
        let ready = move || compiler.grammars.get_or_init(|| Grammars::new(tokenizer)).is_ok();
        tokio::task::spawn_blocking(ready).await.map_err(broken)?;
        let (compiler, source) = (self.clone(), constraint.source.clone());
        let work = tokio::task::spawn_blocking(move || {
            // Held until the work ends, whether somebody still waits for it or not.
            let _place = place;
            let grammars = compiler.grammars.get_or_init(|| Grammars::new(tokenizer)).as_ref().map_err(Clone::clone)?;
            let grammar = Arc::new(grammars.compile(&source)?);
            compiler.kept().keep(source, &grammar, grammar.bytes());
            Ok(grammar)
        });
        match timeout(Duration::from_secs(GRAMMAR_SECONDS), work).await {
            Ok(Ok(compiled)) => compiled.map_err(|error| Constraint::wrong(&constraint.field, &error)),
            Ok(Err(error)) => Err(broken(error)),
            Err(_) => {
                let field = &constraint.field;
                let message = format!("`{field}` takes more than {GRAMMAR_SECONDS} s to compile: make it simpler");
                Err(ApiError::field(field, message))
            }
        }
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept<Grammar>> {
        // Nothing between its lines can fail half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last ones that were used.
#[derive(Debug)]
struct Kept<G> {
    most: usize,
    bytes_most: usize,
    grammars: HashMap<Source, Entry<G>>,
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry<G> {
    grammar: Arc<G>,
    bytes: usize,
    /// The time of its last use.
    used: u64,
}

impl<G> Kept<G> {
    fn new(most: usize, bytes_most: usize) -> Self {
        Self { most, bytes_most, grammars: HashMap::new(), bytes: 0, uses: 0 }
    }

    fn find(&mut self, source: &Source) -> Option<Arc<G>> {
        self.uses += 1;
        let entry = self.grammars.get_mut(source)?;
        entry.used = self.uses;
        Some(entry.grammar.clone())
    }

    fn keep(&mut self, source: Source, grammar: &Arc<G>, bytes: usize) {
        self.uses += 1;
        self.bytes += bytes;
        let entry = Entry { grammar: grammar.clone(), bytes, used: self.uses };
        if let Some(before) = self.grammars.insert(source, entry) {
            self.bytes -= before.bytes;
        }
        while self.grammars.len() > self.most || self.bytes > self.bytes_most {
            let oldest = self.grammars.iter().min_by_key(|(_, entry)| entry.used).map(|(source, _)| source.clone());
            match oldest.and_then(|oldest| self.grammars.remove(&oldest)) {
                Some(entry) => self.bytes -= entry.bytes,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept() {
        let source = |i: usize| Source::regex(&format!("a{i}")).unwrap();
        let mut kept = Kept::new(3, 100);
        for i in 0..3 {
            kept.keep(source(i), &Arc::new(i), 1);
        }
        assert_eq!(kept.find(&source(0)).as_deref(), Some(&0));
        for i in 3..1000 {
            kept.keep(source(i), &Arc::new(i), 1);
            assert_eq!(kept.find(&source(0)).as_deref(), Some(&0), "it was used last but one");
        }
        assert_eq!(kept.grammars.len(), 3);
        assert!(kept.find(&source(1)).is_none() && kept.find(&source(999)).is_some());
        kept.keep(source(5), &Arc::new(5), 99);
        kept.keep(source(5), &Arc::new(5), 99);
        assert_eq!((kept.grammars.len(), kept.bytes), (2, 100), "one of a byte beside it");
        kept.keep(source(6), &Arc::new(6), 101);
        assert_eq!((kept.grammars.len(), kept.bytes), (0, 0));
    }
}
