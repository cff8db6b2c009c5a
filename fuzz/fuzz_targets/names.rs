//! Questions of a guest's resolver.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ramet_net::dns::exercise(input));
