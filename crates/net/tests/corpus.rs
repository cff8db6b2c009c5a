//! What fuzzing found worth keeping, and some thousand inputs near it, go through the same functions as there.

use std::path::PathBuf;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let read =
        |entry: std::io::Result<std::fs::DirEntry>| std::fs::read(entry.unwrap().path()).unwrap();
    let found: Vec<_> = std::fs::read_dir(folder).unwrap().map(read).collect();
    assert!(!found.is_empty());
    found
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % below.max(1)
    }
}

fn mutate(input: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut input = input.to_vec();
    for _ in 0..=numbers.next(4) {
        if input.is_empty() {
            break;
        }
        let at = numbers.next(input.len());
        match numbers.next(4) {
            0 => input[at] ^= 1 << numbers.next(8),
            1 => input[at] = [0, 1, 0x7f, 0x80, 0xff][numbers.next(5)],
            2 => input.truncate(at),
            _ => input.insert(at, u8::try_from(numbers.next(256)).unwrap()),
        }
    }
    input
}

fn run(target: &str, mutants: usize, exercise: impl Fn(&[u8])) {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let corpus = corpus(target);
    for input in &corpus {
        exercise(input);
    }
    for _ in 0..mutants {
        let input = &corpus[numbers.next(corpus.len())];
        exercise(&mutate(input, &mut numbers));
    }
}

#[test]
fn frames_of_a_guest() {
    run("port", 3000, ramet_net::port::exercise::exercise);
}

#[test]
fn first_bytes_of_a_connection() {
    run("first_bytes", 20_000, |input| drop(ramet_net::sniff::listen(input)));
}

#[test]
fn questions_for_names() {
    run("names", 20_000, ramet_net::dns::exercise);
}
