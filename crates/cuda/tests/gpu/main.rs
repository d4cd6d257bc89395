//! What needs a GPU. Everything is ignored by default and run with `--ignored` where there is one; the binary carries
//! its data, so that it can be taken to another machine. With one GPU, ranks share it.

mod all_reduce;
mod attention;
mod golden;
mod lab;
mod linear;
mod ops;
mod rank;
mod sample;
mod support;
