//! Pre-tokenizers: how a text is cut into the pieces that BPE merges within. One rule per name in `tokenizer.ggml.pre`;
//! the names and what goes with them are at the end.
//!
//! The patterns are those that the models' own tokenizers publish. They end in `\s+(?!\S)|\s+`: a run of white space
//! leaves its last character to the word behind it. That look-ahead needs a backtracking engine, which is quadratic or
//! gives up on long runs. Here a pattern ends in `\s+` and [`Pass::pieces`] hands the last character back, so a
//! linear-time engine does.

use regex::Regex;

use crate::TextError;

/// A pre-tokenizer and what its name says beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pre {
    /// The passes, each cutting the pieces of the one before.
    passes: &'static [(&'static str, Hand)],
    /// Whether a piece that is a token as a whole is taken as it is, even where merges would not reach it.
    ignores_merges: bool,
    /// Whether text starts with the BOS token where the file does not say.
    adds_bos: bool,
    /// Whether text is put in Unicode's composed form (NFC) first.
    composes: bool,
}

/// When a run of white space hands its last character back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    Never,
    Always,
    /// A run that ends in a line break was matched by `\s*[\r\n]+`, which keeps it whole.
    UnlessLine,
}

/// GPT-2's words.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// Words as GPT-4 has them, and most after it: a letter run takes the character before it along. They differ in which
/// characters belong to letters, and in how digits are grouped.
macro_rules! words {
    ($letters:literal, $digits:literal) => {
        concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}",
            $letters,
            r"]+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}",
            $letters,
            r"]+[\r\n]*|\s*[\r\n]+|\s+"
        )
    };
}

/// Words as GPT-4o has them: a capital begins a new one. They differ in letters that are left out, in what may follow
/// a word, in how digits are grouped, and in what may end a run of symbols.
macro_rules! cased_words {
    ($but:literal, $suffix:literal, $digits:literal, $ends:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
            $but,
            r"]*[\p{Ll}\p{Lm}\p{Lo}\p{M}",
            $but,
            r"]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
            $but,
            r"]+[\p{Ll}\p{Lm}\p{Lo}\p{M}",
            $but,
            r"]*",
            $suffix,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+",
            $ends,
            r"|\s*[\r\n]+|\s+"
        )
    };
}

/// DeepSeek V3's words: digits and CJK were cut away before, and a symbol begins a word of Latin letters.
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
);

/// Falcon's symbols.
const SYMBOLS: &str = r"[\p{P}$+<=>^~|`]+";

const DIGITS_1: &str = r"\p{N}";
const DIGITS_3: &str = r"\p{N}{1,3}";
/// Chinese and Korean, as the first DeepSeeks have it.
const CJK_KOREAN: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";
/// Chinese and Japanese, as DeepSeek V3 has it.
const CJK_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";

/// A rule that only cuts.
const fn rule(passes: &'static [(&'static str, Hand)]) -> Pre {
    Pre { passes, ignores_merges: false, adds_bos: false, composes: false }
}

const GPT_2: Pre = rule(&[(GPT2, Hand::Always)]);
const SMOLLM: Pre = rule(&[(DIGITS_1, Hand::Never), (GPT2, Hand::Always)]);
const CL100K: Pre = rule(&[(words!("", r"\p{N}{1,3}"), Hand::UnlessLine)]);
const SINGLE_DIGITS: Pre = rule(&[(words!("", r"\p{N}"), Hand::UnlessLine)]);
const O200K: Pre =
    rule(&[(cased_words!("", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}", r"[\r\n/]*"), Hand::UnlessLine)]);
const DEEPSEEK_V3: Pre = rule(&[(DIGITS_3, Hand::Never), (CJK_KANA, Hand::Never), (DEEPSEEK3, Hand::UnlessLine)]);
const KIMI_K2: Pre = Pre {
    ignores_merges: true,
    ..rule(&[(
        concat!(
            r"\p{Han}+|",
            cased_words!(r"&&[^\p{Han}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}", r"[\r\n]*")
        ),
        Hand::UnlessLine,
    )])
};
const LLAMA3: Pre = Pre { ignores_merges: true, adds_bos: true, ..CL100K };
const QWEN2: Pre = Pre { composes: true, ..SINGLE_DIGITS };

/// What stands in for a rule that is not known. Most tokenizers since GPT-4 cut as it does.
const FALLBACK: (&str, Pre) = ("glm4", CL100K);

/// The rules by the names that files use.
const RULES: &[(&[&str], Pre)] = &[
    (&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"], SMOLLM),
    (
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
        GPT_2,
    ),
    (&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], LLAMA3),
    (&["glm4", "glm5"], Pre { ignores_merges: true, ..CL100K }),
    (&["chatglm-bpe", "dbrx", "smaug-bpe"], CL100K),
    (&["qwen2", "deepseek-r1-qwen", "megrez"], QWEN2),
    (&["stablelm2", "hunyuan", "solar-open", "grok-2", "kormo", "f2llmv2"], SINGLE_DIGITS),
    (&["qwen35"], Pre { composes: true, ..rule(&[(words!(r"\p{M}", r"\p{N}"), Hand::UnlessLine)]) }),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm"], DEEPSEEK_V3),
    (
        &["deepseek-llm"],
        rule(&[
            (r"[\r\n]", Hand::Never),
            (r"\s?\p{LC}+", Hand::Never),
            (r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+", Hand::Never),
            (r"\s+$", Hand::Never),
            (CJK_KOREAN, Hand::Never),
            (DIGITS_1, Hand::Never),
        ]),
    ),
    (
        &["deepseek-coder"],
        rule(&[
            (r"[\r\n]", Hand::Never),
            (r"\s?\p{L}+", Hand::Never),
            (r"\s?\p{P}+", Hand::Never),
            (CJK_KOREAN, Hand::Never),
            (DIGITS_1, Hand::Never),
        ]),
    ),
    (&["falcon"], rule(&[(SYMBOLS, Hand::Never), (GPT2, Hand::Always), ("[0-9][0-9][0-9]", Hand::Never)])),
    (&["gpt-4o", "llama4"], Pre { ignores_merges: true, ..O200K }),
    (&["minimax-m2", "kanana2"], O200K),
    (&["kimi-k2"], KIMI_K2),
    (
        &["tekken"],
        Pre {
            ignores_merges: true,
            adds_bos: true,
            ..rule(&[(cased_words!("", "", r"\p{N}", r"[\r\n/]*"), Hand::UnlessLine)])
        },
    ),
    (
        &["seed-coder"],
        rule(&[(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
            Hand::UnlessLine,
        )]),
    ),
];

impl Pre {
    /// The rule that a file names, if it is known.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        RULES.iter().find(|(names, _)| names.contains(&name)).map(|(_, rule)| *rule)
    }

    /// What stands in for a rule that is not known, and whose it is.
    pub(crate) fn fallback() -> (&'static str, Self) {
        FALLBACK
    }

    pub(crate) fn ignores_merges(self) -> bool {
        self.ignores_merges
    }

    pub(crate) fn adds_bos(self) -> bool {
        self.adds_bos
    }

    pub(crate) fn composes(self) -> bool {
        self.composes
    }

    /// The passes, each cutting the pieces of the one before.
    pub(crate) fn passes(self) -> Result<Vec<Pass>, TextError> {
        self.passes.iter().map(|(pattern, hand)| Pass::new(pattern, *hand)).collect()
    }
}

/// One pattern over a text.
#[derive(Debug)]
pub(crate) struct Pass {
    pattern: Regex,
    hand: Hand,
}

impl Pass {
    fn new(pattern: &str, hand: Hand) -> Result<Self, TextError> {
        let pattern = Regex::new(pattern).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        Ok(Self { pattern, hand })
    }

    /// Calls `each` with the pieces of `text` in order; together they are the whole text.
    pub(crate) fn pieces<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        let mut at = 0;
        while at < text.len() {
            let Some(found) = self.pattern.find_at(text, at) else { return each(&text[at..]) };
            if found.start() > at {
                each(&text[at..found.start()]);
            }
            let end = found.start() + self.kept(found.as_str(), found.end() == text.len());
            each(&text[found.start()..end]);
            at = end;
        }
    }

    /// How many bytes of a match stay in the piece, never none.
    fn kept(&self, found: &str, at_end: bool) -> usize {
        if at_end || self.hand == Hand::Never {
            return found.len();
        }
        let Some(last) = found.chars().next_back().filter(|c| c.is_whitespace()) else { return found.len() };
        let rest = found.len() - last.len_utf8();
        let keeps_line = self.hand == Hand::UnlessLine && matches!(last, '\r' | '\n');
        // Only the last alternative ends in white space other than a line break, and it matches nothing else.
        if rest == 0 || keeps_line || !found.starts_with(char::is_whitespace) { found.len() } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for pass in Pre::from_name(pre).unwrap().passes().unwrap() {
            let mut next = Vec::new();
            for piece in pieces {
                pass.pieces(piece, &mut |p| next.push(p));
            }
            pieces = next;
        }
        pieces
    }

    #[track_caller]
    fn check(pre: &str, text: &str, pieces: &[&str]) {
        assert_eq!(cut(pre, text), pieces, "{pre} on {text:?}");
    }

    #[test]
    fn white_space_leaves_one_character_to_the_word_behind() {
        for pre in ["smollm", "llama-bpe", "qwen2", "gpt-4o", "kimi-k2", "deepseek-v3", "glm4"] {
            check(pre, "a   b", &["a", "  ", " b"]);
            check(pre, "a   ", &["a", "   "]);
            check(pre, "   ", &["   "]);
            check(pre, "\u{3000}x", if pre == "smollm" { &["\u{3000}", "x"] } else { &["\u{3000}x"] });
        }
        check("smollm", "a\n\nb", &["a", "\n", "\n", "b"]);
        check("llama-bpe", "a\n\nb", &["a", "\n\n", "b"]);
        check("qwen2", "a \n \n  b", &["a", " \n \n", " ", " b"]);
        check("qwen2", "x;\n\n\ty", &["x", ";\n\n", "\ty"]);
    }

    #[test]
    fn digits_group_as_each_model_wants() {
        check("smollm", "in 12345", &["in", " ", "1", "2", "3", "4", "5"]);
        check("qwen2", "in 123", &["in", " ", "1", "2", "3"]);
        check("llama-bpe", "in 12345", &["in", " ", "123", "45"]);
        check("gpt-2", "in 12345", &["in", " 12345"]);
        check("deepseek-v3", "in 12345", &["in", " ", "123", "45"]);
        check("falcon", "in 12345", &["in", " ", "123", "45"]);
    }

    #[test]
    fn a_cut_digit_ends_the_text_before_it() {
        // SmolLM's first pass isolates the digit, so the spaces before it are at their piece's end and stay together.
        check("smollm", "a   1", &["a", "   ", "1"]);
        check("deepseek-v3", "a   1", &["a", "   ", "1"]);
        check("qwen2", "a   1", &["a", "  ", " ", "1"]);
    }

    #[test]
    fn contractions() {
        check("smollm", "we'LL we'll", &["we", "'", "LL", " we", "'ll"]);
        check("llama-bpe", "we'LL we'll", &["we", "'LL", " we", "'ll"]);
        check("gpt-4o", "we'LL We'll", &["we'LL", " We'll"]);
        check("tekken", "we'll", &["we", "'ll"]);
        check("deepseek-v3", "we'll", &["we", "'ll"]);
    }

    #[test]
    fn capitals_and_scripts() {
        check("gpt-4o", "camelCaseHTTPServer x/\n/y", &["camel", "Case", "HTTPServer", " x", "/\n/", "y"]);
        check("kimi-k2", "camelCase x/\n/y", &["camel", "Case", " x", "/\n", "/y"]);
        check("kimi-k2", "a海は静かb", &["a", "海", "は", "静", "かb"]);
        check("deepseek-v3", "a海は静か。b", &["a", "海は静か", "。", "b"]);
        check("qwen2", "ne\u{301}e", &["ne", "\u{301}e"]);
        check("qwen35", "ne\u{301}e", &["ne\u{301}e"]);
    }

    #[test]
    fn every_rule_compiles_and_loses_nothing() {
        let text =
            "We'll pay 12345 € at\r\n\r\n  the café, naïve\u{301}; 海は 섬 !!/\n\tx_1 = {y: \"z\"}  \u{0}\u{3000} ";
        for (names, rule) in RULES {
            for pass in rule.passes().unwrap() {
                let mut joined = String::new();
                pass.pieces(text, &mut |piece| {
                    assert!(!piece.is_empty(), "{names:?}");
                    joined.push_str(piece);
                });
                assert_eq!(joined, text, "{names:?}");
            }
        }
        let mut names: Vec<&str> = RULES.iter().flat_map(|(names, _)| *names).copied().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "a name has two rules");
        assert_eq!(Pre::from_name("glm6"), None);
    }
}
