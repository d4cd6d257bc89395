//! Times decode and prefill of a model: `speed MODEL [threads] [prefill tokens] [decode tokens] [repetitions]`.
//!
//! Beside the wall clock it counts tokens per second of processor time of all threads together (Linux only), which a
//! busy machine disturbs less.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_cpu::Options;
use tombolo_gguf::Gguf;
use tombolo_model::{Arith, Backend, Capacity, Config, Program, Row, Sampling, Sequence, Shard, Step, Token};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |s| s.parse());
    let path = args.get(1).ok_or("usage: speed MODEL [threads] [prefill tokens] [decode tokens] [repetitions]")?;
    let (threads, prefill, decode, repetitions) = (number(2, 2)?, number(3, 512)?, number(4, 128)?, number(5, 3)?);

    let gguf = Arc::new(Gguf::open(path.as_ref())?);
    let config = Config::from_gguf(&gguf)?;
    let groups = Program::build(&gguf, &config, Shard::WHOLE)?.groups.len();
    let context = prefill.max(decode) + 1;
    let capacity = Capacity::new(prefill.max(1), 1, context);
    let options = Options { threads, arith: Arith::Production, kv: None, deadline: Duration::from_secs(60) };
    let start = Instant::now();
    let mut rank = tombolo_cpu::load(gguf, &config, 1, capacity, &options)?.remove(0);
    println!("{}; loaded in {:.0} ms", rank.describe(), start.elapsed().as_secs_f64() * 1e3);

    let tables = vec![(0..capacity.table_len() as u32).collect(); groups];
    let run = |rank: &mut Box<dyn Backend>, start: usize, tokens: Vec<Token>| {
        let last = tokens.len() - 1;
        let row = |(i, token)| Row {
            token,
            position: (start + i) as u32,
            sequence: 0,
            sample: (i == last).then_some(Sampling::GREEDY),
            draft: false,
        };
        let rows = tokens.into_iter().enumerate().map(row).collect();
        let step = Step { rows, sequences: vec![Sequence { tables: tables.clone() }], ..Step::default() };
        rank.submit(Arc::new(step)).and_then(|()| rank.collect())
    };
    let token = |i: usize| Token::Host((i * 7919 % config.vocabulary) as u32);
    for _ in 0..repetitions {
        if prefill > 0 {
            let clock = Clock::start();
            run(&mut rank, 0, (0..prefill).map(token).collect())?;
            print!("prefill {}  ", clock.speed(prefill));
        }
        run(&mut rank, 0, vec![token(0)])?;
        let clock = Clock::start();
        for i in 1..=decode {
            run(&mut rank, i, vec![Token::Prev(0)])?;
        }
        println!("decode {}", clock.speed(decode));
    }
    Ok(())
}

struct Clock {
    wall: Instant,
    processor_s: Option<f64>,
}

impl Clock {
    fn start() -> Self {
        Self { wall: Instant::now(), processor_s: processor_s() }
    }

    fn speed(&self, tokens: usize) -> String {
        let wall = format!("{:.1} tok/s", tokens as f64 / self.wall.elapsed().as_secs_f64());
        match (self.processor_s, processor_s()) {
            (Some(start), Some(end)) if end > start => {
                format!("{wall} ({:.1} a CPU second)", tokens as f64 / (end - start))
            }
            _ => wall,
        }
    }
}

/// Processor time of all threads so far, in steps of 10 ms.
fn processor_s() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
