//! Constraints on what a model says: JSON schemas, regular expressions, grammars, choices and calls of tools become masks
//! over the vocabulary, by which every answer is what was asked for.
//!
//! [`Grammars`] holds what a vocabulary needs once; a [`Source`] is what was asked for, its size checked; a [`Grammar`] is
//! compiled and may be shared; a [`Matcher`] follows one answer. Compiling and matching are llguidance's; what a stranger
//! may ask of it is in [`crate::limits`].
//!
//! Not here: how requests spell constraints, and where they are compiled (the server's).

mod calls;
mod check;
mod faults;
mod gbnf;
mod matcher;
mod schema;
mod source;
mod vocabulary;

pub use calls::{CallForm, Calls};
pub use matcher::{Interrupter, Matcher, Reasoning};
pub use source::Source;

use crate::{Tokenizer, limits};
use faults::Fault;
use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use matcher::Tokens;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use vocabulary::Vocabulary;

/// Why there is no constraint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The model's vocabulary has no token that ends an answer, or is otherwise not fit for it.
    #[error("this model's vocabulary is not fit for constraints: {0}")]
    Vocabulary(String),
    /// It is larger than what is taken.
    #[error("{what}: {count} is more than the {limit} possible")]
    TooMany {
        /// What was counted, with its unit.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// It is no schema, regular expression or grammar, or nothing can match it, or it takes too much work.
    #[error("{0}")]
    Invalid(String),
    /// Calls of tools cannot be constrained for this model.
    #[error("{0}")]
    Calls(String),
    /// The system gives no thread to compile on.
    #[error("the system gives no thread to compile a grammar on: {0}")]
    NoThread(String),
}

/// What constraints need of a vocabulary: its trie, and which of its tokens lie within texts of JSON.
pub struct Grammars {
    factory: ParserFactory,
    tokens: Arc<Tokens>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a model's tokenizer, which lives as long as the program. It takes about a tenth of a second for every 100,000
    /// tokens, so it is made once, when the first constraint comes.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] where no token ends an answer, or where the vocabulary is too large or odd for a trie.
    pub fn new(tokenizer: &'static Tokenizer) -> Result<Self, GrammarError> {
        let unfit = |why: &str| GrammarError::Vocabulary(why.into());
        if tokenizer.end_of_generation().is_empty() {
            return Err(unfit("it has no token that ends an answer"));
        }
        let made = catch_unwind(AssertUnwindSafe(|| {
            let env = Vocabulary::new(tokenizer).into_env();
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        }));
        let mut factory = match made {
            Ok(Ok(factory)) => factory,
            Ok(Err(_)) | Err(_) => return Err(unfit("its tokens make no trie")),
        };
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: limits::GRAMMAR_FUEL,
            step_lexer_fuel: limits::MASK_FUEL,
            step_max_items: limits::MASK_ITEMS,
            max_items_in_row: limits::MASK_ROW_ITEMS,
            max_lexer_states: limits::GRAMMAR_STATES,
            max_grammar_size: limits::GRAMMAR_SYMBOLS,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory, tokens: Arc::new(Tokens::new(tokenizer)) })
    }

    /// Compiles what was asked for. It blocks for as long as that takes: milliseconds for what people write, and under
    /// the limits not more than some seconds.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] where it is none, or where no answer of this vocabulary can match it.
    pub fn compile(&self, source: &Source) -> Result<Grammar, GrammarError> {
        // Schemas and grammars nest, and so does the work on them.
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(limits::GRAMMAR_STACK_BYTES);
            let running = thread.spawn_scoped(scope, || self.compile_here(source));
            let running = running.map_err(|error| GrammarError::NoThread(error.to_string()))?;
            running.join().map_err(|_| GrammarError::Invalid("the compiler of grammars failed on it".into()))
        });
        compiled?
    }

    fn compile_here(&self, source: &Source) -> Result<Grammar, GrammarError> {
        let first = self.compile_grammar(source.grammar_of()?);
        let (first, bytes) = first.map_err(|fault| GrammarError::Invalid(source.told(self, fault)))?;
        // Every answer begins with a copy.
        source::at_most("compiled grammar, bytes", bytes, limits::GRAMMAR_COMPILED_BYTES)?;
        Ok(Grammar { first, bytes, tokens: self.tokens.clone() })
    }

    fn compile_schema(&self, mut schema: serde_json::Value) -> Result<(), Fault> {
        source::set_space(&mut schema, true);
        self.compile_grammar(TopLevelGrammar::from_json_schema(schema)).map(drop)
    }

    /// A matcher at its beginning, and the bytes that it takes.
    fn compile_grammar(&self, grammar: TopLevelGrammar) -> Result<(llguidance::Matcher, usize), Fault> {
        let fault = |error: &dyn std::fmt::Display| Fault::of(&error.to_string());
        let parser = self.factory.create_parser(grammar).map_err(|error| fault(&error))?;
        let bytes = parser.parser.lexer_stats().num_bytes;
        let mut first = llguidance::Matcher::new(Ok(parser));
        if let Some(error) = first.get_error() {
            return Err(fault(&error));
        }
        // What can begin with no token is known now, not in the middle of a request.
        first.compute_mask_or_eos().map_err(|error| fault(&error))?;
        Ok((first, bytes))
    }
}

/// A compiled constraint, at its beginning.
pub struct Grammar {
    first: llguidance::Matcher,
    bytes: usize,
    tokens: Arc<Tokens>,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Follows one answer. Nothing is shared with other answers: what one of them drives it to, others do not pay for.
    pub fn matcher(&self, reasoning: Reasoning) -> Matcher {
        Matcher::new(self.first.deep_clone().into_cancellable(), self.tokens.clone(), reasoning)
    }
}
