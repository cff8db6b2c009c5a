//! Frames of a guest: parser, demultiplexing, TCP, members.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ramet_net::port::exercise::exercise(input));
