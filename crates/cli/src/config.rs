//! The configuration file: options under their names, a table for each command. What the command line or the environment
//! says goes first; what the file says is put on the command line as if it were typed, so that both mean the same.

use crate::error::{Error, input};
use crate::limits::CONFIG_BYTES_MAX;
use crate::output;
use crate::small_file;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The option that names the file.
const OPTION: &str = "config";
/// Its value for none at all.
const NONE: &str = "none";

/// One option of the file, as it would be typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// `bench.serve`, and the option's name.
    table: String,
    key: String,
    line: usize,
    args: Vec<String>,
    /// What is told of it.
    shown: String,
}

/// Adds to the command line what the file says. `parsed`: what it means without.
pub(crate) fn with_file(args: Vec<OsString>, parsed: &ArgMatches) -> Result<Vec<OsString>, Error> {
    let Some(path) = path(parsed)? else { return Ok(args) };
    let at = |error: &dyn std::fmt::Display| input(format!("{}: {error}", path.display()));
    let text = small_file::text(&path, CONFIG_BYTES_MAX).map_err(|error| at(&error))?;
    let mut command = crate::command_line();
    command.build();
    let entries = entries(&text, &command).map_err(|why| at(&why))?;
    let (table, deepest, matches) = deepest(&command, parsed);
    let is_unsaid = |entry: &Entry| is_unsaid(deepest, matches, &entry.key);
    let used: Vec<Entry> = entries.into_iter().filter(|entry| entry.table == table && is_unsaid(entry)).collect();
    // One by one, so that what is wrong has a line.
    for entry in &used {
        let typed = typed(&args, std::slice::from_ref(entry));
        if let Err(wrong) = crate::command_line().try_get_matches_from(typed) {
            return Err(at(&format!("line {}: {}", entry.line, crate::error::first_line(&wrong))));
        }
    }
    if !used.is_empty() {
        let shown: Vec<&str> = used.iter().map(|entry| entry.shown.as_str()).collect();
        output::say_safely(&format!("from {}: {}", path.display(), shown.join(", ")));
    }
    Ok(typed(&args, &used))
}

/// The file that was named, or the one of the user, where there is one.
fn path(parsed: &ArgMatches) -> Result<Option<PathBuf>, Error> {
    let mut matches = parsed;
    let mut named = None;
    loop {
        named = matches.try_get_one::<PathBuf>(OPTION).ok().flatten().or(named);
        let Some((_, inner)) = matches.subcommand() else { break };
        matches = inner;
    }
    match named {
        Some(path) if path.as_os_str() == NONE => Ok(None),
        // A variable that is there and empty says nothing.
        Some(path) if path.as_os_str().is_empty() => Ok(of_user().filter(|path| path.is_file())),
        Some(path) => Ok(Some(path.clone())),
        None => Ok(of_user().filter(|path| path.is_file())),
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

/// Whether neither it nor what it excludes was said.
fn is_unsaid(command: &Command, matches: &ArgMatches, key: &str) -> bool {
    let Some(arg) = option(command, key) else { return false };
    let is_said = |arg: &Arg| {
        matches!(matches.value_source(arg.get_id().as_str()), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    !is_said(arg) && !command.get_arg_conflicts_with(arg).into_iter().any(is_said)
}

/// The command line with more options: before what is text whatever it looks like.
fn typed(args: &[OsString], entries: &[Entry]) -> Vec<OsString> {
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let more = entries.iter().flat_map(|entry| &entry.args).map(OsString::from);
    args[..end].iter().cloned().chain(more).chain(args[end..].iter().cloned()).collect()
}

/// An option by its name, without dashes.
fn option<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let is_it =
        |arg: &&Arg| arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&key));
    let is_open = |arg: &&Arg| !matches!(arg.get_id().as_str(), OPTION | "help" | "version");
    command.get_arguments().filter(is_open).find(is_it)
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
        if let Some(inner) = value.get_ref().as_table() {
            let Some(sub) = command.find_subcommand(key) else {
                return Err(format!("line {line}: there is no command '{}'", path.replace('.', " ")));
            };
            gather(text, sub, &path, inner, found)?;
            continue;
        }
        let Some(arg) = option(command, key) else { return Err(unknown(line, command, name, key)) };
        let (args, shown) = as_typed(arg, key, value).map_err(|why| format!("line {line}: {path}: {why}"))?;
        found.push(Entry { table: name.into(), key: key.into(), line, args, shown });
    }
    Ok(())
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
    Ok((values.iter().map(|value| format!("--{key}={value}")).collect(), format!("{key} {shown}")))
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
            ("[serve]\nport = {a = 1}\n", ["line 2", "no command 'serve port'"]),
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
