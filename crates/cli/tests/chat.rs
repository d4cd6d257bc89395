//! The chat, as a user at a terminal has it.

mod common;

use common::{speaking_model, text, tombolo};
use rustix::pty;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Until something is written to the terminal that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with `tombolo run` in it.
struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let master = pty::openpt(pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY).unwrap();
        pty::grantpt(&master).unwrap();
        pty::unlockpt(&master).unwrap();
        let slave =
            File::options().read(true).write(true).open(pty::ptsname(&master, Vec::new()).unwrap().to_str().unwrap());
        let slave = slave.unwrap();
        let mut command = tombolo(args);
        let end = || slave.try_clone().unwrap();
        let child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        drop(slave);
        let mut screen_file = File::from(master);
        let keys = screen_file.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the child is an error of the terminal.
            while let Ok(count @ 1..) = screen_file.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, screen, seen: String::new() }
    }

    /// Presses keys once the editor waits for them: what is typed before is nobody's.
    #[track_caller]
    fn press(&mut self, keys: &str) {
        // The editor asks for marks around pasted text when it begins to read.
        self.expect("\u{1b}[?2004h");
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for `text`, and forgets what came up to its end.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let left = PATIENCE.saturating_sub(started.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("'{text}' did not come, but: {:?}", self.seen),
            }
        }
    }

    /// Waits for more than white space, and leaves it.
    #[track_caller]
    fn expect_anything(&mut self) {
        while self.seen.trim().is_empty() {
            let bytes = self.screen.recv_timeout(PATIENCE).expect("something is written");
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    #[track_caller]
    fn expect_end(mut self, code: i32) {
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{}", self.seen);
    }
}

#[test]
fn a_chat_has_commands_a_memory_and_an_end() {
    let model = speaking_model("chat.gguf");
    let mut terminal = Terminal::start(&["run", text(&model), "-n", "3", "--temp", "0", "-c", "200"]);
    terminal.expect("/help lists what else there is");
    terminal.press("/help\r");
    terminal.expect("take it away");
    terminal.press("/again\r");
    terminal.expect("nothing was written yet");
    terminal.press("/nonsense\r");
    terminal.expect("there is no /nonsense");
    terminal.press("hello\r");
    terminal.expect("prompt 12 tokens");
    // The template spells "user: hello", the answer's three bytes with their role, and the new message.
    terminal.press("/tmp/x\r");
    terminal.expect("cached)");
    terminal.press("/again\r");
    terminal.expect("cached)");
    for line in ["/clear\r", "/system be brief\r", "hello\r"] {
        terminal.press(line);
    }
    terminal.expect("prompt 29 tokens");
    terminal.press("\u{3}");
    terminal.expect("Ctrl-D ends the chat");
    terminal.press("\u{4}");
    terminal.expect_end(0);
}

#[test]
fn ctrl_c_ends_an_answer_and_not_the_chat() {
    let model = speaking_model("endless.gguf");
    let mut terminal = Terminal::start(&["run", text(&model), "--temp", "0"]);
    terminal.press("hello\r");
    // The line is taken; what follows is the answer, which only ends where the context does.
    terminal.expect("\u{1b}[?2004l");
    terminal.expect("\n");
    terminal.expect_anything();
    rustix::process::kill_process(rustix::process::Pid::from_child(&terminal.child), rustix::process::Signal::INT)
        .unwrap();
    terminal.expect("generated");
    terminal.press("/exit\r");
    terminal.expect_end(0);
}

#[test]
fn without_a_template_every_line_is_a_text_of_its_own() {
    let mut terminal = Terminal::start(&["run", "-n", "4", "--temp", "0", "--device", "cpu"]);
    terminal.expect("not for answers");
    terminal.expect("Write how a text begins");
    terminal.press("/help\r");
    terminal.expect("beginning of a text");
    terminal.press("/system be brief\r");
    terminal.expect("there is no /system");
    terminal.press("And the king said\r");
    terminal.expect("prompt 5 tokens");
    terminal.press("/again\r");
    terminal.expect("prompt 1 tokens (and 4 cached)");
    terminal.press("\u{4}");
    terminal.expect_end(0);
}
