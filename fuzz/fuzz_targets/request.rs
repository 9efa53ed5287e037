//! Decodes raw messages of the FUSE device, as they come and with the length that their header must state.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_mount::request::Request;

fuzz_target!(|bytes: &[u8]| {
    decode(bytes);
    let mut bytes = bytes.to_vec();
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if let Some(stated) = bytes.first_chunk_mut() {
        *stated = len.to_ne_bytes();
    }
    decode(&bytes);
});

fn decode(bytes: &[u8]) {
    for extended in [false, true] {
        match Request::decode(bytes, extended) {
            Ok(request) => _ = format!("{request:?}"),
            Err(malformed) => _ = format!("{malformed:?} {:?}", malformed.reply()),
        }
    }
}
