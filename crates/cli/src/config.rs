//! The configuration file: options under their names, a table for each command. What the command line or the environment
//! says goes first; what the file says is put on the command line as if it were typed, so that both mean the same.

use crate::error::{Error, input};
use crate::limits::CONFIG_BYTES_MAX;
use crate::log;
use crate::output;
use crate::small_file;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The option that names the file, and the variable that may do so.
const OPTION: &str = "config";
pub(crate) const VARIABLE: &str = "TOMBOLO_CONFIG";
/// Its value for none at all.
const NONE: &str = "none";

/// One option of the file, as it would be typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// `bench.serve`, and the option's name as it stands there.
    table: String,
    key: String,
    /// The same option under whatever name, and all of these as they are typed.
    id: String,
    names: Vec<String>,
    line: usize,
    args: Vec<String>,
    /// It has no name on the command line, only a place.
    is_positional: bool,
    /// What is told of it.
    shown: String,
}

/// What a file put on the command line.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    path: PathBuf,
    entries: Vec<Entry>,
}

/// Adds to the command line what the file says. `parsed`: what it means without, with what is required perhaps missing.
pub(crate) fn with_file(args: Vec<OsString>, parsed: &ArgMatches) -> Result<(Vec<OsString>, Taken), Error> {
    let Some((path, named)) = path(parsed) else { return Ok((args, Taken::default())) };
    let unread = |why: String| input(format!("{}, the configuration file {named}: {why}", path.display()));
    let text = small_file::text(&path, CONFIG_BYTES_MAX).map_err(unread)?;
    let at = |error: String| input(format!("{}: {error}", path.display()));
    let mut command = crate::command_line();
    command.build();
    let entries = entries(&text, &command).map_err(at)?;
    let (table, deepest, matches) = deepest(&command, parsed);
    let is_said = |entry: &Entry| matches.value_source(&entry.id).is_some_and(|from| from != ValueSource::DefaultValue);
    let unsaid: Vec<Entry> = entries.into_iter().filter(|entry| entry.table == table && !is_said(entry)).collect();
    let is_json = |entry: &Entry| entry.table == "serve" && entry.key == "log-json" && !entry.args.is_empty();
    if unsaid.iter().any(is_json) {
        log::as_json();
    }
    let entries = agreeing(&args, unsaid, deepest).map_err(at)?;
    Ok((typed(&args, &entries), Taken { path, entries }))
}

/// Those that the command line does not exclude, if they do not exclude each other.
fn agreeing(args: &[OsString], unsaid: Vec<Entry>, command: &Command) -> Result<Vec<Entry>, String> {
    let wrong = |entries: &[Entry]| crate::command_line().try_get_matches_from(typed(args, entries)).err();
    let excludes = |entries: &[Entry]| wrong(entries).is_some_and(|wrong| wrong.kind() == ErrorKind::ArgumentConflict);
    let is_missing = |wrong: &clap::Error| wrong.kind() == ErrorKind::MissingRequiredArgument;
    let mut kept: Vec<Entry> = Vec::new();
    for entry in unsaid {
        // One by one, so that what is wrong has a line.
        match wrong(std::slice::from_ref(&entry)) {
            // What was typed goes first.
            Some(wrong) if wrong.kind() == ErrorKind::ArgumentConflict => continue,
            Some(wrong) if !is_missing(&wrong) => {
                return Err(format!("line {}: {}", entry.line, crate::error::first_line(&wrong)));
            }
            _ => {}
        }
        let other = kept.iter().find(|other| excludes(&[(*other).clone(), entry.clone()]));
        if let Some(Entry { key, line, .. }) = other {
            return Err(format!("line {}: '{}' excludes '{key}' in line {line}", entry.line, entry.key));
        }
        kept.push(entry);
    }
    // Something that an option of the file needs, and not the command itself.
    let needy = || kept.iter().find(|entry| wrong(&without(&kept, entry)).is_none());
    match wrong(&kept).filter(is_missing).and_then(|wrong| Some((needy()?, wrong))) {
        Some((entry, wrong)) => Err(format!(
            "line {}: '{}' of [{}] needs more: {}",
            entry.line,
            entry.key,
            command.get_name(),
            crate::error::first_line(&wrong)
        )),
        None => Ok(kept),
    }
}

fn without(entries: &[Entry], one: &Entry) -> Vec<Entry> {
    entries.iter().filter(|entry| *entry != one).cloned().collect()
}

impl Taken {
    /// Tells what it is.
    pub(crate) fn say(&self) {
        if !self.entries.is_empty() {
            let shown: Vec<&str> = self.entries.iter().map(|entry| entry.shown.as_str()).collect();
            output::say_safely(&format!("from {}: {}", self.path.display(), shown.join(", ")));
        }
    }

    /// An error about a value that stands in the file, with its place there.
    pub(crate) fn located(&self, error: Error) -> Error {
        let at = |line: String| match self.entries.iter().find(|entry| entry.is_meant(&line)) {
            Some(entry) => format!("{}: line {}: {line}", self.path.display(), entry.line),
            None => line,
        };
        match error {
            Error::Input(line) => Error::Input(at(line)),
            Error::Failure(line) => Error::Failure(at(line)),
            Error::ReaderGone => Error::ReaderGone,
        }
    }
}

impl Entry {
    /// Whether an error is about it: one begins with the option or its value, or does so behind a file's name.
    fn is_meant(&self, line: &str) -> bool {
        let behind = line.split_once(": ").map_or("", |(_, rest)| rest);
        let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let begins = |line: &str, name: &String| line.strip_prefix(name).is_some_and(|rest| !goes_on(rest));
        let values = self
            .args
            .iter()
            .filter_map(|arg| if self.is_positional { Some(&arg[..]) } else { Some(arg.split_once('=')?.1) });
        self.names.iter().any(|name| begins(line, name) || begins(behind, name))
            || values.into_iter().any(|value| {
                let rest = line.trim_start_matches('\'').strip_prefix(value);
                !value.is_empty() && rest.is_some_and(|rest| rest.trim_start_matches('\'').starts_with(": "))
            })
    }
}

/// The file that was named, or the one of the user, where there is one, and by what it came.
fn path(parsed: &ArgMatches) -> Option<(PathBuf, &'static str)> {
    let mut matches = parsed;
    let mut named = None;
    loop {
        if let Ok(Some(path)) = matches.try_get_one::<PathBuf>(OPTION) {
            named = Some((path.clone(), matches.value_source(OPTION)));
        }
        let Some((_, inner)) = matches.subcommand() else { break };
        matches = inner;
    }
    match named {
        Some((path, _)) if path.as_os_str() == NONE => None,
        // A variable that is there and empty says nothing.
        Some((path, source)) if !path.as_os_str().is_empty() => {
            let is_variable = source == Some(ValueSource::EnvVariable);
            Some((path, if is_variable { "that TOMBOLO_CONFIG names" } else { "that --config names" }))
        }
        // Whatever has that name: what cannot be read is told, not passed over.
        _ => of_user()
            .filter(|path| path.symlink_metadata().is_ok())
            .map(|path| (path, "of this user (--config none goes without)")),
    }
}

/// `$XDG_CONFIG_HOME/tombolo/config.toml`, or under `~/.config` (XDG Base Directory Specification).
pub(crate) fn of_user() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    folder.map(|folder| folder.join(Path::new("tombolo/config.toml")))
}

/// The command that runs: its table, what it takes, and what was said to it.
fn deepest<'a>(command: &'a Command, parsed: &'a ArgMatches) -> (String, &'a Command, &'a ArgMatches) {
    let (mut names, mut command, mut matches) = (Vec::new(), command, parsed);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(sub) = command.find_subcommand(name) else { break };
        names.push(name);
        (command, matches) = (sub, inner);
    }
    (names.join("."), command, matches)
}

/// The command line with more options: before what is text whatever it looks like, which what has only a place is, too.
fn typed(args: &[OsString], entries: &[Entry]) -> Vec<OsString> {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let of = |is_positional| {
        let chosen = entries.iter().filter(move |entry| entry.is_positional == is_positional);
        chosen.flat_map(|entry| &entry.args).map(OsString::from)
    };
    let mut typed: Vec<OsString> = args[..end].iter().cloned().chain(of(false)).collect();
    typed.extend_from_slice(&args[end..]);
    let mut placed = of(true).peekable();
    if placed.peek().is_some() && end == args.len() {
        typed.push("--".into());
    }
    typed.extend(placed);
    typed
}

/// What a name in the file means: an option without its dashes, or what has only a place by what it is called in the help.
fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let is_open = |arg: &&Arg| !matches!(arg.get_id().as_str(), OPTION | "help" | "version");
    let is_named =
        |arg: &&Arg| arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&key));
    let open = || command.get_arguments().filter(is_open);
    open().find(is_named).or_else(|| open().find(|arg| arg.is_positional() && place(arg).as_deref() == Some(key)))
}

/// `repo` of `REPO[:QUANT]`.
fn place(arg: &Arg) -> Option<String> {
    let name = arg.get_value_names()?.first()?;
    Some(name.chars().take_while(char::is_ascii_alphabetic).collect::<String>().to_ascii_lowercase())
}

/// All that a file says, of whatever command.
fn entries(text: &str, command: &Command) -> Result<Vec<Entry>, String> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map(|span| format!("line {}: ", line(text, span.start))).unwrap_or_default();
        format!("{at}{}", error.message())
    })?;
    let mut found = Vec::new();
    gather(text, command, "", table.get_ref(), &mut found)?;
    found.sort_by_key(|entry| entry.line);
    for (at, entry) in found.iter().enumerate() {
        let is_same = |other: &&Entry| other.table == entry.table && other.id == entry.id;
        if let Some(Entry { key, line, .. }) = found[..at].iter().find(is_same) {
            return Err(format!("line {}: '{}' is the option '{key}' of line {line} again", entry.line, entry.key));
        }
    }
    Ok(found)
}

fn line(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1
}

fn gather(
    text: &str,
    command: &Command,
    name: &str,
    table: &DeTable<'_>,
    found: &mut Vec<Entry>,
) -> Result<(), String> {
    for (key, value) in table {
        let (line, key) = (line(text, key.span().start), key.get_ref().as_ref());
        let path = if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        let (sub, arg) = (command.find_subcommand(key), option(command, key));
        match (value.get_ref().as_table(), sub, arg) {
            (Some(inner), Some(sub), _) => gather(text, sub, &path, inner, found)?,
            (Some(_), None, Some(_)) => {
                return Err(format!("line {line}: {path} is an option: a value is needed, not a table"));
            }
            (Some(_), None, None) => {
                return Err(format!("line {line}: there is no command '{}'", path.replace('.', " ")));
            }
            (None, Some(_), _) => {
                return Err(format!("line {line}: '{key}' is a command: its options stand under [{path}]"));
            }
            (None, None, None) => return Err(unknown(line, command, name, key)),
            (None, None, Some(arg)) => {
                let entry =
                    Entry::new(arg, name, key, line, value).map_err(|why| format!("line {line}: {path}: {why}"))?;
                found.push(entry);
            }
        }
    }
    Ok(())
}

impl Entry {
    fn new(arg: &Arg, table: &str, key: &str, line: usize, value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        let (args, shown) = as_typed(arg, key, value)?;
        let longs = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
        let shorts = arg.get_short().map(|short| format!("-{short}"));
        let names = longs.map(|long| format!("--{long}")).chain(shorts).collect();
        let (id, is_positional) = (arg.get_id().to_string(), arg.is_positional());
        Ok(Self { table: table.into(), key: key.into(), id, names, line, args, is_positional, shown })
    }
}

fn unknown(line: usize, command: &Command, name: &str, key: &str) -> String {
    if name.is_empty() {
        return format!("line {line}: '{key}' belongs in the table of a command, as [serve]");
    }
    let dashed = key.replace('_', "-").to_ascii_lowercase();
    let hint = option(command, &dashed).map(|_| format!("; '{dashed}' is meant?")).unwrap_or_default();
    format!("line {line}: [{name}] has no option '{key}'{hint}")
}

/// An option as it would be typed, and as it is shown.
fn as_typed(arg: &Arg, key: &str, value: &Spanned<DeValue<'_>>) -> Result<(Vec<String>, String), String> {
    if !arg.get_action().takes_values() {
        let Some(is_on) = value.get_ref().as_bool() else { return Err("true or false is needed".into()) };
        let args = if is_on { vec![format!("--{key}")] } else { Vec::new() };
        return Ok((args, format!("{key} {is_on}")));
    }
    let values = match value.get_ref() {
        DeValue::Array(values) if matches!(arg.get_action(), ArgAction::Append) => {
            values.iter().map(|value| scalar(value.get_ref())).collect::<Result<Vec<_>, _>>()?
        }
        DeValue::Array(_) => return Err("one value is needed".into()),
        value => vec![scalar(value)?],
    };
    let shown = if arg.is_hide_env_values_set() { "(hidden)".into() } else { values.join(",") };
    let args = match arg.is_positional() {
        true => values,
        false => values.iter().map(|value| format!("--{key}={value}")).collect(),
    };
    Ok((args, format!("{key} {shown}")))
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().into()),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            parsed.map(|number| number.to_string()).map_err(|error| error.to_string())
        }
        DeValue::Float(number) => Ok(number.as_str().into()),
        DeValue::Boolean(_) => Err("a value is needed, not true or false".into()),
        other => Err(format!("a text or a number is needed, not a {}", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Vec<Entry>, String> {
        let mut command = crate::command_line();
        command.build();
        entries(text, &command)
    }

    #[test]
    fn options_are_what_would_be_typed() {
        let text = "[serve]\nport = 8_001\nserved-model-name = [\"a b\", \"c\"]\nno-enable-prefix-caching = true\n\
                    [bench.serve]\nrequest-rate = 2.5\nignore-eos = false\n";
        let typed: Vec<Vec<String>> = check(text).unwrap().into_iter().map(|entry| entry.args).collect();
        let expected: [&[&str]; 5] = [
            &["--port=8001"],
            &["--served-model-name=a b", "--served-model-name=c"],
            &["--no-enable-prefix-caching"],
            &["--request-rate=2.5"],
            &[],
        ];
        assert_eq!(typed, expected);
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, parts) in [
            ("[serve]\n\nprot = 1\n", ["line 3", "[serve] has no option 'prot'"]),
            ("[serve]\nctx_size = 1\n", ["line 2", "'ctx-size' is meant?"]),
            ("port = 1\n", ["line 1", "belongs in the table"]),
            ("[serv]\nport = 1\n", ["line 1", "no command 'serv'"]),
            ("[bench.srve]\nseed = 1\n", ["line 1", "no command 'bench srve'"]),
            ("[serve]\nport = true\n", ["line 2", "serve.port: a value is needed"]),
            ("[serve]\nport = [1]\n", ["line 2", "one value"]),
            ("[serve]\nallow-unauthenticated = 1\n", ["line 2", "true or false"]),
            ("[serve]\nport = {a = 1}\n", ["line 2", "serve.port is an option"]),
            ("[[serve]]\nport = 1\n", ["line 1", "stand under [serve]"]),
            ("serve = 1\n", ["line 1", "stand under [serve]"]),
            ("[serve]\nctx-size = 1\nmax-model-len = 1\n", ["line 3: 'max-model-len'", "'ctx-size' of line 2"]),
            ("[serve]\nport 1\n", ["line 2", ""]),
            ("[serve]\nconfig = \"x\"\n", ["line 2", "no option 'config'"]),
        ] {
            let why = check(text).unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{text}: {why}");
        }
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = check("[serve]\napi-key = \"secret\"\n").unwrap().remove(0).shown;
        assert_eq!(shown, "api-key (hidden)");
    }

    #[test]
    fn they_stand_before_text() {
        let args = ["tombolo", "run", "--", "x"].map(OsString::from);
        let entry = check("[run]\ntemp = 0\n").unwrap();
        assert_eq!(typed(&args, &entry), ["tombolo", "run", "--temp=0", "--", "x"].map(OsString::from));
    }
}
