//! The configuration file: what it sets, what goes before it, and what is said of mistakes.
#![allow(missing_docs)]

mod common;

use common::{Ran, fail, scratch, text, tombolo};
use std::path::PathBuf;

fn file(name: &str, content: &str) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[track_caller]
fn succeed(args: &[&str], environment: &[(&str, &str)]) -> Ran {
    let ran: Ran = tombolo(args).envs(environment.iter().copied()).output().unwrap().into();
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran
}

const PROMPT: [&str; 3] = ["run", "-p", "In the beginning"];

#[test]
fn a_file_says_what_would_be_typed_and_flags_go_first() {
    let path = file("a.toml", "[run]\ntemp = 0\npredict = 4\ndevice = \"cpu\"\n[serve]\nport = 1\n");
    let typed = succeed(&[&PROMPT[..], &["--temp", "0", "-n", "4"]].concat(), &[]);
    let with = [&PROMPT[..], &["--config", text(&path)]].concat();
    let ran = succeed(&with, &[]);
    assert_eq!(ran.out, typed.out);
    assert!(ran.err.contains("a.toml: temp 0, predict 4, device cpu"), "{}", ran.err);
    let fewer = succeed(&[&with[..], &["-n", "1"]].concat(), &[]);
    assert!(fewer.out.len() < ran.out.len() && ran.out.starts_with(fewer.out.trim_end()), "{}", fewer.out);
    assert!(!fewer.err.contains("predict"), "{}", fewer.err);
    // Before the command, and by the environment.
    let ran = succeed(&[&["--config", text(&path)], &PROMPT[..]].concat(), &[]);
    assert_eq!(ran.out, typed.out);
    assert_eq!(succeed(&PROMPT, &[("TOMBOLO_CONFIG", text(&path))]).out, typed.out);
}

#[test]
fn the_users_file_is_found() {
    let folder = scratch("xdg");
    std::fs::create_dir_all(folder.join("tombolo")).unwrap();
    std::fs::write(folder.join("tombolo/config.toml"), "[run]\nmodel = \"/nowhere.gguf\"\npredict = 1\n").unwrap();
    let run = |more: &[&str], is_off: bool| -> Ran {
        let mut command = tombolo(&[&PROMPT[..], more].concat());
        command.env("XDG_CONFIG_HOME", &folder);
        if !is_off {
            command.env_remove("TOMBOLO_CONFIG");
        }
        command.output().unwrap().into()
    };
    let found = run(&[], false);
    assert!(found.code == Some(2) && found.err.contains("model /nowhere.gguf, predict 1"), "{}", found.err);
    // A model that is named, as an option or without, is meant instead.
    for said in [&["demo"][..], &["-m", "demo"]] {
        let said = run(said, false);
        assert!(said.code == Some(0) && said.err.contains("config.toml: predict 1\n"), "{}", said.err);
    }
    assert!(!run(&["-n", "1"], true).err.contains("config.toml"));
}

#[test]
fn mistakes_have_their_line() {
    let with = |name: &str, content: &str, args: &[&str], parts: &[&str]| {
        let path = file(name, content);
        let args = [args, &["--config", text(&path)]].concat();
        fail(&args, 2, &[&[name], parts].concat());
    };
    with("unknown.toml", "[serve]\nprot = 1\n", &["inspect"], &["line 2", "[serve] has no option 'prot'"]);
    with("value.toml", "[run]\n\ntemp = \"warm\"\n", &["run", "-p", "x"], &["line 3", "'warm'", "--temp"]);
    with("no.toml", "[run\n", &["run", "-p", "x"], &["line 1"]);
}

#[test]
fn what_is_typed_goes_before_what_excludes_it() {
    let content = "[run]\ntokens = \"1,2\"\nchat = true\npredict = 1\njson-schema = \"{}\"\n";
    // What excludes each other in the file, too, but is none of it meant.
    let path = file("excluded.toml", content);
    let grammar = "root ::= \"a\"";
    for (typed, taken) in [
        (&["-p", "x", "--no-chat", "--grammar", grammar][..], "predict 1\n"),
        (&["--tokens", "3", "--no-chat"], "predict 1\n"),
        (&["-p", "x", "--no-chat"], "predict 1, json-schema {}\n"),
    ] {
        let ran = succeed(&[&["run", "--config", text(&path)], typed].concat(), &[]);
        assert!(ran.err.contains(&format!("excluded.toml: {taken}")), "{typed:?}: {}", ran.err);
    }
    for (content, typed) in [
        ("no-chat = true", &["--chat"][..]),
        ("no-chat = true", &["--system", "x"]),
        ("system = \"x\"", &["--no-chat"]),
        ("grammar-file = \"/nowhere\"", &["--json-schema", "{}"]),
        ("ignore-eos = true", &["--json-schema", "{}"]),
    ] {
        let path = file("excludes.toml", &format!("[run]\n{content}\n"));
        let args = ["run", "-p", "x", "-n", "1", "--config", text(&path)];
        let ran = succeed(&[&args, typed].concat(), &[]);
        assert!(!ran.err.contains("excludes.toml"), "{content}: {}", ran.err);
    }
}

#[test]
fn what_excludes_each_other_in_the_file_is_refused() {
    for (content, parts) in [
        ("chat = true\nno-chat = true", ["line 3", "'no-chat' excludes 'chat' in line 2"]),
        ("prompt = \"x\"\n\ntokens = \"1\"", ["line 4", "'tokens' excludes 'prompt' in line 2"]),
        ("grammar = \"x\"\njson-schema = \"{}\"", ["line 3", "'json-schema' excludes 'grammar' in line 2"]),
        ("no-chat = true\nraw = true", ["line 3", "'raw' is the option 'no-chat' of line 2"]),
    ] {
        let path = file("both.toml", &format!("[run]\n{content}\n"));
        fail(&["run", "--config", text(&path)], 2, &["both.toml", parts[0], parts[1]]);
    }
    let path = file("needs.toml", "[doctor]\ngpu = \"RTX 3090\"\n");
    fail(
        &["doctor", "--config", text(&path)],
        2,
        &["needs.toml", "line 2", "'gpu' of [doctor] needs more", "--machine"],
    );
}

#[test]
fn values_that_only_the_command_refuses_have_their_line() {
    for (content, command, parts) in [
        ("[run]\ntemp = -1", &["run", "-p", "x"][..], &["line 2: --temp -1"][..]),
        ("[run]\n\nctx-size = 999999999", &["run", "-p", "x"], &["line 3: -c 999999999"]),
        ("[run]\nmodel = \"/nowhere.gguf\"", &["run", "-p", "x"], &["line 2: /nowhere.gguf"]),
        ("[run]\nmodel = \"dummy:none\"", &["run", "-p", "x"], &["line 2: dummy:none: there is none"]),
        ("[run]\ntokens = \"4000000000\"", &["run"], &["line 2: --tokens"]),
        ("[serve]\nhost = \"0.0.0.0\"", &["serve"], &["line 2: --host 0.0.0.0 opens the server"]),
        ("[serve]\napi-key = [\"a\", \"\"]", &["serve"], &["line 2: --api-key: a key has"]),
        ("[serve]\nport = 0\nmax-num-seqs = 0", &["serve"], &["line 3: --max-num-seqs 0"]),
        ("[bench.serve]\nburstiness = -1", &["bench", "serve"], &["line 2: --burstiness"]),
        ("[pull]\nrepo = \"none\"", &["pull"], &["line 2: 'none': OWNER/NAME"]),
    ] {
        let path = file("refused.toml", &format!("{content}\n"));
        let ran: Ran = tombolo(&[command, &["--config", text(&path)]].concat()).output().unwrap().into();
        assert_eq!(ran.code, Some(2), "{content}: {}", ran.err);
        let last = ran.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains("refused.toml: "), "{content}: {}", ran.err);
        assert!(parts.iter().all(|part| last.contains(part)), "{content}: {}", ran.err);
    }
    // Of the same kind, and typed.
    let path = file("refused.toml", "[run]\ntop-k = 1\n");
    let ran: Ran = tombolo(&["run", "-p", "x", "--temp", "-1", "--config", text(&path)]).output().unwrap().into();
    assert!(ran.err.contains("error: --temp -1"), "{}", ran.err);
}

#[test]
fn a_file_that_cannot_be_read_is_told_with_what_named_it() {
    let reads = |path: &str, parts: &[&str]| {
        fail(
            &["inspect", "--config", path],
            2,
            &[&[path, "the configuration file that --config names"], parts].concat(),
        );
    };
    reads("/nowhere/x.toml", &["No such file"]);
    let latin = scratch("latin.toml");
    std::fs::write(&latin, b"[run]\nprompt = \"\xe9\"\n").unwrap();
    reads(text(&latin), &["not UTF-8"]);
    reads(env!("CARGO_TARGET_TMPDIR"), &["a directory"]);
    let large = file("large.toml", &"#".repeat(2 << 20));
    reads(text(&large), &["more than"]);
    // Nobody ever writes to it.
    let pipe = scratch("pipe");
    let _ = std::fs::remove_file(&pipe);
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    reads(text(&pipe), &["not a regular file"]);
    let by = |variable: &str, value: &std::path::Path, parts: &[&str]| {
        let mut command = tombolo(&["inspect"]);
        let ran: Ran = command.env_remove("TOMBOLO_CONFIG").env(variable, value).output().unwrap().into();
        assert!(ran.code == Some(2) && ran.out.is_empty(), "{}", ran.err);
        assert!(parts.iter().all(|part| ran.err.contains(part)), "{}", ran.err);
    };
    by("TOMBOLO_CONFIG", &pipe, &["that TOMBOLO_CONFIG names", "not a regular file"]);
    // One that is there and empty says nothing.
    succeed(&["inspect", "demo"], &[("TOMBOLO_CONFIG", ""), ("XDG_CONFIG_HOME", "/nowhere")]);
    // The user's own, where it is looked for.
    let folder = scratch("odd");
    std::fs::create_dir_all(folder.join("tombolo/config.toml")).unwrap();
    by("XDG_CONFIG_HOME", &folder, &["odd/tombolo/config.toml", "of this user", "--config none", "a directory"]);
    let folder = scratch("dangling");
    std::fs::create_dir_all(folder.join("tombolo")).unwrap();
    let _ = std::os::unix::fs::symlink("/nowhere/x.toml", folder.join("tombolo/config.toml"));
    by("XDG_CONFIG_HOME", &folder, &["of this user", "No such file"]);
}

#[test]
fn what_is_required_may_stand_in_the_file_alone() {
    let path = file(
        "required.toml",
        "[completions]\nshell = \"bash\"\n[inspect]\nfile = \"demo\"\n[plan]\nmodel = \"dummy:no\"\n",
    );
    let with = |args: &[&'static str]| [args, &["--config", text(&path)]].concat();
    let typed = succeed(&["completions", "bash"], &[]);
    let ran = succeed(&with(&["completions"]), &[]);
    assert!(ran.out == typed.out && ran.err.contains("required.toml: shell bash"), "{}", ran.err);
    assert_ne!(succeed(&with(&["completions", "zsh"]), &[]).out, typed.out);
    assert!(succeed(&with(&["inspect", "--json"]), &[]).err.contains("file demo"));
    let ran: Ran = tombolo(&with(&["plan"])).output().unwrap().into();
    assert!(ran.code == Some(2) && ran.err.contains("required.toml: line 6: dummy:no"), "{}", ran.err);
    // What neither says is missed as ever.
    let none = file("none.toml", "[pull]\nrevision = \"main\"\n");
    fail(&["pull", "--config", text(&none)], 2, &["required arguments were not provided", "REPO"]);
}

#[test]
fn what_a_flag_is_refused_for_a_file_is_too() {
    let path = file("open.toml", "[serve]\nhost = \"0.0.0.0\"\n");
    let ran: Ran = tombolo(&["serve", "--config", text(&path)]).output().unwrap().into();
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("opens the server"), "{}", ran.err);
}

#[test]
fn the_file_that_packages_bring_is_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/config.toml");
    let ran = succeed(&["inspect", "demo", "--config", path], &[]);
    assert!(!ran.err.contains("config.toml"), "nothing in it is for inspect: {}", ran.err);
    let content = std::fs::read_to_string(path).unwrap();
    // What is commented out is right, too.
    let all: Vec<&str> = content.lines().map(|line| line.strip_prefix("#= ").unwrap_or(line)).collect();
    let path = file("all.toml", &all.join("\n"));
    succeed(&["inspect", "demo", "--config", text(&path)], &[]);
}
