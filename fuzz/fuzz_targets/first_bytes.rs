//! The first bytes of a connection: TLS and HTTP.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = ramet_net::sniff::listen(input);
});
