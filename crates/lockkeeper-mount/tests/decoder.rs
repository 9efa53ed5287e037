//! Whatever bytes come, the decoder says what is wrong with them and does not panic.

use lockkeeper_mount::abi::{self, op};
use lockkeeper_mount::request::{Malformed, Operation, Request};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn message(opcode: u32, extlen: u16, body: &[u8]) -> Vec<u8> {
    let header = abi::InHeader {
        len: u32::try_from(40 + body.len()).expect("short"),
        opcode,
        unique: 7,
        nodeid: 1,
        uid: 0,
        gid: 0,
        pid: 1,
        total_extlen: extlen,
        padding: 0,
    };
    [header.as_bytes(), body].concat()
}

#[test]
fn a_message_without_a_header_has_nobody_to_answer() {
    for len in 0..40 {
        let malformed = Request::decode(&vec![0; len], true).expect_err("too short");
        assert_eq!(malformed, Malformed::NoHeader(len));
        assert_eq!(malformed.reply(), None);
    }
}

#[test]
fn the_length_must_be_the_messages() {
    let mut bytes = message(op::READLINK, 0, &[]);
    assert!(Request::decode(&bytes, true).is_ok());
    bytes.push(0);
    assert!(Request::decode(&bytes, true).is_err());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [
        &b"\0"[..],
        b".\0",
        b"..\0",
        b"a/b\0",
        b"/\0",
        b"../x\0",
        b"endless",
    ] {
        for opcode in [op::LOOKUP, op::UNLINK, op::RMDIR] {
            let bytes = message(opcode, 0, name);
            let malformed = Request::decode(&bytes, true).expect_err("bad name");
            assert!(malformed.reply().is_some(), "{name:?}");
        }
    }
    let bytes = message(op::LOOKUP, 0, b"...\0");
    assert!(matches!(
        Request::decode(&bytes, true),
        Ok(Request { operation: Operation::Lookup { name }, .. }) if name.to_bytes() == b"..."
    ));
}

#[test]
fn a_group_in_the_extensions_is_found() {
    let name = b"name\0\0\0\0";
    let mkdir = [
        abi::MkdirIn {
            mode: 0o755,
            umask: 0,
        }
        .as_bytes(),
        name,
    ]
    .concat();
    let groups: [u32; 4] = [16, abi::EXT_GROUPS, 1, 2000];
    let bytes = message(op::MKDIR, 2, &[&mkdir[..], groups.as_bytes()].concat());
    let request = Request::decode(&bytes, true).expect("well-formed");
    assert_eq!(request.caller.group_hint, Some(2000));
    for wrong in [
        [4, abi::EXT_GROUPS, 1, 2000],
        [99, 32, 1, 1],
        [16, 32, 5, 1],
        [0, 0, 0, 0],
    ] {
        let wrong: [u32; 4] = wrong;
        let bytes = message(op::MKDIR, 2, &[&mkdir[..], wrong.as_bytes()].concat());
        // Either refused, or read without reading past the end.
        let _ = Request::decode(&bytes, true);
    }
    assert!(Request::decode(&message(op::MKDIR, 200, &mkdir), true).is_err());
}

#[test]
fn data_shorter_than_announced_is_refused() {
    let args = abi::WriteIn {
        size: 100,
        ..Default::default()
    };
    assert!(
        Request::decode(
            &message(op::WRITE, 0, &[args.as_bytes(), &[0; 99]].concat()),
            true
        )
        .is_err()
    );
    assert!(
        Request::decode(
            &message(op::WRITE, 0, &[args.as_bytes(), &[0; 100]].concat()),
            true
        )
        .is_ok()
    );
    let head = abi::BatchForgetIn {
        count: u32::MAX,
        dummy: 0,
    };
    let forgets = message(op::BATCH_FORGET, 0, head.as_bytes());
    let malformed = Request::decode(&forgets, true);
    assert_eq!(
        malformed.expect_err("short").reply(),
        None,
        "forgets are never answered"
    );
}

/// How many cases to run: `LOCKKEEPER_PROPTEST_CASES`, if it is set.
fn cases(usual: u32) -> u32 {
    std::env::var("LOCKKEEPER_PROPTEST_CASES")
        .map_or(usual, |cases| cases.parse().expect("a number of cases"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(4096)))]

    /// Bytes of any sort.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), ext in any::<bool>()) {
        let _ = Request::decode(&bytes, ext);
    }

    /// A good header and any body: every opcode's decoder is reached.
    #[test]
    fn any_body(
        opcode in 0..60_u32,
        extlen in prop_oneof![8 => Just(0_u16), 1 => 0..8_u16],
        body in prop::collection::vec(any::<u8>(), 0..200),
        ext in any::<bool>(),
    ) {
        let bytes = message(opcode, extlen, &body);
        match Request::decode(&bytes, ext) {
            Ok(request) => prop_assert_eq!(request.unique, 7),
            Err(malformed) => {
                if let Some((unique, _)) = malformed.reply() {
                    prop_assert_eq!(unique, 7);
                }
            }
        }
    }
}
