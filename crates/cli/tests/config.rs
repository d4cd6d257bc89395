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
    fail(&["inspect", "--config", "/nowhere/x.toml"], 2, &["/nowhere/x.toml"]);
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
