//! GBNF, llama.cpp's language of grammars (`root ::= …`), brought into llguidance's. What is regular becomes one expression,
//! as large as it can be, since an expression takes as much text as it can get; only what refers to itself becomes rules.

use super::GrammarError;
use super::source::at_most;
use crate::limits;
use llguidance::regex_to_lark;
use std::collections::HashMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// Whether a grammar is in this language: only here does a rule begin so.
pub(super) fn is_gbnf(grammar: &str) -> bool {
    grammar.lines().any(|line| {
        let name = line.trim_start().split("::=").next().unwrap_or_default().trim_end();
        line.contains("::=") && !name.is_empty() && name.chars().all(is_of_name)
    })
}

/// The same grammar in Lark.
pub(super) fn to_lark(grammar: &str) -> Result<String, GrammarError> {
    let rules = Parser { rest: grammar.chars().peekable(), line: 1, names: HashMap::new(), depth: 0 }.rules()?;
    Writer::new(&rules).write()
}

/// Alternatives, each a sequence.
type Choice = Vec<Vec<Item>>;

/// A part of a sequence, so many times.
struct Item {
    atom: Atom,
    least: u32,
    /// `None`: any number.
    most: Option<u32>,
}

enum Atom {
    /// As an expression.
    Text(String),
    Rule(usize),
    Group(Choice),
}

/// All rules; the first is `root`.
struct Rules {
    names: Vec<String>,
    bodies: Vec<Choice>,
}

struct Parser<'g> {
    rest: Peekable<Chars<'g>>,
    line: usize,
    /// Rules by name, in the order in which they occur.
    names: HashMap<String, usize>,
    depth: usize,
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

impl Parser<'_> {
    fn rules(mut self) -> Result<Rules, GrammarError> {
        let mut bodies: HashMap<usize, Choice> = HashMap::new();
        self.number("root".into());
        self.skip();
        while self.rest.peek().is_some() {
            let name = self.name()?;
            self.skip();
            self.expect("::=")?;
            let number = self.number(name.clone());
            let body = self.choice()?;
            at_most("rules of a grammar", self.names.len(), limits::GRAMMAR_RULES_MAX)?;
            if bodies.insert(number, body).is_some() {
                return Err(self.wrong(&format!("there are two rules `{name}`")));
            }
        }
        let mut names: Vec<(String, usize)> = self.names.into_iter().collect();
        names.sort_unstable_by_key(|(_, number)| *number);
        let names: Vec<String> = names.into_iter().map(|(name, _)| name).collect();
        let body = |(number, name): (usize, &String)| {
            let missing = || GrammarError::Invalid(format!("there is no rule `{}`", crate::error::shorten(name)));
            bodies.remove(&number).ok_or_else(missing)
        };
        let bodies = names.iter().enumerate().map(body).collect::<Result<_, _>>()?;
        Ok(Rules { names, bodies })
    }

    fn number(&mut self, name: String) -> usize {
        let next = self.names.len();
        *self.names.entry(name).or_insert(next)
    }

    fn wrong(&self, what: &str) -> GrammarError {
        GrammarError::Invalid(format!("line {}: {what}", self.line))
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let letter = self.rest.next().ok_or_else(|| self.wrong("the grammar ends too early"))?;
        self.line += usize::from(letter == '\n');
        Ok(letter)
    }

    /// White space and comments.
    fn skip(&mut self) {
        while let Some(letter) = self.rest.peek().copied() {
            match letter {
                '#' => while self.rest.next_if(|letter| *letter != '\n').is_some() {},
                letter if letter.is_whitespace() => {
                    self.line += usize::from(letter == '\n');
                    self.rest.next();
                }
                _ => return,
            }
        }
    }

    fn expect(&mut self, text: &str) -> Result<(), GrammarError> {
        for wanted in text.chars() {
            if self.rest.next_if_eq(&wanted).is_none() {
                return Err(self.wrong(&format!("`{text}` is expected")));
            }
        }
        Ok(())
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let mut name = String::new();
        while let Some(letter) = self.rest.next_if(|letter| is_of_name(*letter)) {
            name.push(letter);
        }
        if name.is_empty() { Err(self.wrong("a rule's name is expected")) } else { Ok(name) }
    }

    fn choice(&mut self) -> Result<Choice, GrammarError> {
        self.depth += 1;
        at_most("groups in groups of a grammar", self.depth, limits::GRAMMAR_DEPTH_MAX)?;
        let mut choice = vec![self.sequence()?];
        while self.rest.next_if_eq(&'|').is_some() {
            choice.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(choice)
    }

    fn sequence(&mut self) -> Result<Vec<Item>, GrammarError> {
        let mut items = Vec::new();
        loop {
            self.skip();
            let atom = match self.rest.peek().copied() {
                Some('"') => self.text()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.next()?;
                    Atom::Text("(?s:.)".into())
                }
                Some('(') => {
                    self.next()?;
                    let choice = self.choice()?;
                    self.expect(")")?;
                    Atom::Group(choice)
                }
                Some(letter) if is_of_name(letter) => {
                    // The next rule begins like a reference.
                    let before = (self.rest.clone(), self.line);
                    let name = self.name()?;
                    self.skip();
                    if self.rest.peek() == Some(&':') {
                        (self.rest, self.line) = before;
                        return Ok(items);
                    }
                    Atom::Rule(self.number(name))
                }
                Some('|' | ')') | None => return Ok(items),
                Some(other) => return Err(self.wrong(&format!("{other:?} is not expected"))),
            };
            let (least, most) = self.times()?;
            items.push(Item { atom, least, most });
        }
    }

    fn times(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let Some(mark) = self.rest.next_if(|letter| "*+?{".contains(*letter)) else { return Ok((1, Some(1))) };
        match mark {
            '*' => Ok((0, None)),
            '+' => Ok((1, None)),
            '?' => Ok((0, Some(1))),
            _ => {
                let least = self.count()?.unwrap_or(0);
                let most = match self.rest.next_if_eq(&',') {
                    Some(_) => self.count()?,
                    None => Some(least),
                };
                self.expect("}")?;
                if most.is_some_and(|most| most < least) {
                    return Err(self.wrong("a repetition's least number is above its most"));
                }
                Ok((least, most))
            }
        }
    }

    fn count(&mut self) -> Result<Option<u32>, GrammarError> {
        let mut digits = String::new();
        while let Some(digit) = self.rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let count = (!digits.is_empty()).then(|| digits.parse());
        count.transpose().map_err(|_| self.wrong("a repetition is too large"))
    }

    fn text(&mut self) -> Result<Atom, GrammarError> {
        self.next()?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '"' => return Ok(Atom::Text(regex::escape(&text))),
                '\n' => return Err(self.wrong("a text does not end on its line")),
                '\\' => text.push(self.escaped()?),
                letter => text.push(letter),
            }
        }
    }

    fn class(&mut self) -> Result<Atom, GrammarError> {
        self.next()?;
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        let mut class = String::from(if is_negated { "[^" } else { "[" });
        let mut is_empty = true;
        loop {
            let first = match self.next()? {
                ']' if is_empty => return Err(self.wrong("a class of characters is empty")),
                ']' => break,
                '\\' => self.escaped()?,
                letter => letter,
            };
            is_empty = false;
            let mut last = first;
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.peek().is_some_and(|letter| *letter != ']') {
                self.rest = ahead;
                last = match self.next()? {
                    '\\' => self.escaped()?,
                    letter => letter,
                };
            }
            if last < first {
                return Err(self.wrong("a range of characters ends before it begins"));
            }
            let _ = write!(class, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(first), u32::from(last));
        }
        class.push(']');
        Ok(Atom::Text(class))
    }

    /// Behind a backslash.
    fn escaped(&mut self) -> Result<char, GrammarError> {
        let digits = match self.next()? {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            letter if letter.is_ascii_alphanumeric() => return Err(self.wrong("an escape that is not known")),
            letter => return Ok(letter),
        };
        let mut code = 0u32;
        for _ in 0..digits {
            let digit = self.next()?.to_digit(16).ok_or_else(|| self.wrong("an escape has too few digits"))?;
            code = code.wrapping_shl(4) | digit;
        }
        char::from_u32(code).ok_or_else(|| self.wrong("an escape that is no character"))
    }
}

/// Writes rules of Lark, and the expressions between them.
struct Writer<'r> {
    rules: &'r Rules,
    /// Rules that lead back to themselves, or to one that does.
    recursive: Vec<bool>,
    /// Those that do not, as expressions.
    expressions: Vec<Option<String>>,
    out: String,
    terminals: usize,
}

impl<'r> Writer<'r> {
    fn new(rules: &'r Rules) -> Self {
        let count = rules.names.len();
        let mut refers: Vec<Vec<usize>> = rules.bodies.iter().map(references).collect();
        refers.iter_mut().for_each(|list| {
            list.sort_unstable();
            list.dedup();
        });
        // Those are not recursive whose references all are not: taken away from the leaves on.
        let mut recursive = vec![true; count];
        let mut left: Vec<usize> = refers.iter().map(Vec::len).collect();
        let mut users = vec![Vec::new(); count];
        for (rule, list) in refers.iter().enumerate() {
            list.iter().for_each(|used| users[*used].push(rule));
        }
        let mut ready: Vec<usize> = (0..count).filter(|rule| left[*rule] == 0).collect();
        while let Some(rule) = ready.pop() {
            recursive[rule] = false;
            for user in &users[rule] {
                left[*user] -= 1;
                if left[*user] == 0 {
                    ready.push(*user);
                }
            }
        }
        Self { rules, recursive, expressions: vec![None; count], out: String::new(), terminals: 0 }
    }

    fn write(mut self) -> Result<String, GrammarError> {
        if !self.recursive[0] {
            let expression = self.expression_of(0)?;
            return Ok(format!("start: {}\n", lark(&expression)));
        }
        self.out.push_str("start: r0\n");
        for rule in (0..self.rules.names.len()).filter(|rule| self.recursive[*rule]).collect::<Vec<_>>() {
            let body = self.choice(&self.rules.bodies[rule])?;
            let _ = writeln!(self.out, "r{rule}: {body}");
        }
        Ok(self.out)
    }

    fn choice(&mut self, choice: &'r Choice) -> Result<String, GrammarError> {
        let alternatives = choice.iter().map(|items| self.sequence(items)).collect::<Result<Vec<_>, _>>()?;
        Ok(alternatives.join(" | "))
    }

    /// Neighbours that are regular are one expression.
    fn sequence(&mut self, items: &'r [Item]) -> Result<String, GrammarError> {
        let mut parts = Vec::new();
        let runs: Vec<&'r [Item]> = items.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b)).collect();
        for run in runs {
            if run.iter().all(|item| self.is_regular(item)) {
                let expression = self.expression(run)?;
                let terminal = self.terminals;
                self.terminals += 1;
                let _ = writeln!(self.out, "T{terminal}: {}", lark(&expression));
                parts.push(format!("T{terminal}"));
                continue;
            }
            for item in run {
                let atom = match &item.atom {
                    Atom::Rule(rule) => format!("r{rule}"),
                    Atom::Group(choice) => format!("({})", self.choice(choice)?),
                    Atom::Text(_) => String::new(),
                };
                parts.push(match (item.least, item.most) {
                    (1, Some(1)) => atom,
                    (0, None) => format!("{atom}*"),
                    (1, None) => format!("{atom}+"),
                    (0, Some(1)) => format!("{atom}?"),
                    (least, None) => format!("{atom}{{{least},}}"),
                    (least, Some(most)) => format!("{atom}{{{least},{most}}}"),
                });
            }
        }
        Ok(if parts.is_empty() { "\"\"".into() } else { parts.join(" ") })
    }

    fn is_regular(&self, item: &Item) -> bool {
        match &item.atom {
            Atom::Text(_) => true,
            Atom::Rule(rule) => !self.recursive[*rule],
            Atom::Group(choice) => choice.iter().flatten().all(|item| self.is_regular(item)),
        }
    }

    fn expression_of(&mut self, rule: usize) -> Result<String, GrammarError> {
        if let Some(expression) = &self.expressions[rule] {
            return Ok(expression.clone());
        }
        let expression = self.alternatives(&self.rules.bodies[rule])?;
        self.expressions[rule] = Some(expression.clone());
        Ok(expression)
    }

    fn alternatives(&mut self, choice: &'r Choice) -> Result<String, GrammarError> {
        let parts = choice.iter().map(|items| self.expression(items)).collect::<Result<Vec<_>, _>>()?;
        Ok(format!("(?:{})", parts.join("|")))
    }

    fn expression(&mut self, items: &'r [Item]) -> Result<String, GrammarError> {
        let mut text = String::new();
        for item in items {
            let atom = match &item.atom {
                Atom::Text(expression) => format!("(?:{expression})"),
                Atom::Rule(rule) => self.expression_of(*rule)?,
                Atom::Group(choice) => self.alternatives(choice)?,
            };
            text.push_str(&atom);
            match (item.least, item.most) {
                (1, Some(1)) => {}
                (least, Some(most)) => drop(write!(text, "{{{least},{most}}}")),
                (least, None) => drop(write!(text, "{{{least},}}")),
            }
            at_most("expression in a grammar, bytes", text.len(), limits::REGEX_BYTES_MAX)?;
        }
        Ok(text)
    }
}

/// The rules that a choice refers to.
fn references(choice: &Choice) -> Vec<usize> {
    let of = |item: &Item| match &item.atom {
        Atom::Text(_) => Vec::new(),
        Atom::Rule(rule) => vec![*rule],
        Atom::Group(choice) => references(choice),
    };
    choice.iter().flatten().flat_map(of).collect()
}

fn lark(expression: &str) -> String {
    format!("/{}/", regex_to_lark(expression, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_told_apart() {
        assert!(is_gbnf("# x\nroot ::= \"a\"") && is_gbnf("root\t::= a"));
        assert!(!is_gbnf("start: \"::=\"\n// root ::= x") && !is_gbnf("start: a::0x0\n"));
    }

    #[test]
    fn what_is_regular_is_one_expression() {
        let lark =
            to_lark("root ::= pair (\",\" pair)* # pairs\npair ::= [a-z]{1,3} \"=\\n\"\n  | [^\\]x] \"/\"?").unwrap();
        assert_eq!(lark.lines().count(), 1, "{lark}");
        assert!(lark.starts_with("start: /") && lark.contains("\\x{61}-\\x{7a}") && lark.contains("\\/"), "{lark}");
        let nested = to_lark("root ::= \"(\" root? \")\" ws\nws ::= \" \"*").unwrap();
        assert_eq!(nested.lines().count(), 4, "{nested}");
        assert!(nested.contains("r0: T0 r0? T1"), "{nested}");
    }

    #[test]
    fn what_is_none_is_told_by_its_line() {
        for (grammar, part) in [
            ("root ::= \"a", "ends too early"),
            ("root ::= \"a\n\"", "line"),
            ("root ::= x", "no rule `x`"),
            ("x ::= \"a\"", "no rule `root`"),
            ("root ::= \"a\"\nroot ::= \"b\"", "two rules"),
            ("root ::= [z-a]", "ends before it begins"),
            ("root ::= []", "empty"),
            ("root ::= \"a\"{3,2}", "above its most"),
            ("root ::= \"a\"{99999999999}", "too large"),
            ("root ::= \"a\" & \"b\"", "not expected"),
            ("root ::= (\"a\"", "`)` is expected"),
            ("root ::= \"\\ud800\"", "no character"),
            ("root ::= \"a\")", "name is expected"),
        ] {
            let error = to_lark(grammar).unwrap_err().to_string();
            assert!(error.contains(part), "{grammar:?}: {error}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
        assert!(matches!(to_lark(&deep), Err(GrammarError::TooMany { .. })));
        let bomb: String = (0..40).map(|i| format!("a{i} ::= a{} a{}\n", i + 1, i + 1)).collect();
        let bomb = format!("root ::= a0\n{bomb}a40 ::= \"x\"");
        assert!(matches!(to_lark(&bomb), Err(GrammarError::TooMany { .. })));
    }
}
