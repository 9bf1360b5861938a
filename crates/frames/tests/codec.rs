//! Bytes and frames: everything comes back, nothing hostile gets through or costs much.

mod samples;

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tessera_frames::cluster::{
    FromSession, LOG_CHUNK_BYTES_MAX, LogReply, LogRequest, PIECE_BYTES_MAX, PieceAssembly,
    SESSION_CHUNK_BYTES_MAX, StopCause, StreamRequest, ToAgent, ToController, ToSession, pieces,
};
use tessera_frames::codec::{DecodeError, EncodeError, FRAME_BYTES_MAX, decode, encode};
use tessera_model::{AttemptId, Millis};

fn bytes_of<T: Serialize>(frame: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).unwrap();
    bytes
}

fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    frame: &T,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&decode::<T>(&bytes_of(frame)).unwrap(), frame);
    Ok(())
}

/// No panic, and whatever is taken is a frame that can be sent on.
fn is_refused_or_sound<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(frame) = decode::<T>(bytes) {
        let again = bytes_of(&frame);
        prop_assert!(again.len() <= bytes.len() && decode::<T>(&again).is_ok());
    }
    Ok(())
}

fn all_kinds(bytes: &[u8]) -> Result<(), TestCaseError> {
    is_refused_or_sound::<ToAgent>(bytes)?;
    is_refused_or_sound::<ToController>(bytes)?;
    is_refused_or_sound::<LogRequest>(bytes)?;
    is_refused_or_sound::<StreamRequest>(bytes)?;
    is_refused_or_sound::<ToSession>(bytes)?;
    is_refused_or_sound::<FromSession>(bytes)?;
    is_refused_or_sound::<LogReply>(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_frame_comes_back(
        command in samples::to_agent(),
        report in samples::to_controller(),
        request in samples::log_request(),
        reply in samples::log_reply(),
    ) {
        comes_back(&command)?;
        comes_back(&report)?;
        comes_back(&request)?;
        comes_back(&reply)?;
    }

    #[test]
    fn every_frame_of_a_session_comes_back(
        request in samples::stream_request(),
        there in samples::to_session(),
        back in samples::from_session(),
    ) {
        comes_back(&request)?;
        comes_back(&there)?;
        comes_back(&back)?;
    }

    #[test]
    fn noise_is_no_panic(noise in vec(any::<u8>(), 0..600)) {
        all_kinds(&noise)?;
    }

    #[test]
    fn a_frame_with_changed_bytes_is_no_panic(
        command in samples::to_agent(),
        report in samples::to_controller(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for mut bytes in [bytes_of(&command), bytes_of(&report)] {
            for (place, value) in &changes {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            all_kinds(&bytes)?;
        }
    }

    #[test]
    fn a_cut_frame_and_one_with_a_tail_are_refused(
        report in samples::to_controller(), cut: prop::sample::Index,
    ) {
        let mut bytes = bytes_of(&report);
        let length = cut.index(bytes.len());
        prop_assert!(decode::<ToController>(&bytes[..length]).is_err());
        bytes.push(0);
        let refused = decode::<ToController>(&bytes);
        let trailing = matches!(refused, Err(DecodeError::Trailing { left: 1 }));
        prop_assert!(trailing, "{:?}", refused);
    }

    #[test]
    fn a_length_that_no_frame_can_have_is_refused_at_once(claimed in 65_536_u64..) {
        // A chunk of output whose length is made up: variant, offset, length, no bytes.
        let mut bytes = vec![0; 12];
        bytes.extend_from_slice(&claimed.to_le_bytes());

        let refused = decode::<LogReply>(&bytes);

        let malformed = matches!(refused, Err(DecodeError::Malformed(_)));
        prop_assert!(malformed, "{:?}", refused);
    }
}

#[test]
fn the_bytes_of_frames_never_change() {
    let attempt = AttemptId::from_uuid(uuid::Uuid::from_u128(0x0102));
    let text = "att_00000000000000000000000000000102";
    let id = [&36_u64.to_le_bytes()[..], text.as_bytes()].concat();
    let number = |n: u64| n.to_le_bytes().to_vec();
    let variant = |n: u32| n.to_le_bytes().to_vec();

    let golden = [
        (
            bytes_of(&ToController::Renew { sent: Millis::new(0x0a0b), generation: 3 }),
            [variant(4), number(0x0a0b), number(3)].concat(),
        ),
        (bytes_of(&ToController::InventoryDone), variant(3)),
        (bytes_of(&ToController::Tombstoned { attempt }), [variant(5), id.clone()].concat()),
        (bytes_of(&ToAgent::EndAck { attempt }), [variant(6), id.clone()].concat()),
        (
            bytes_of(&ToAgent::Stop { epoch: 9, attempt, cause: StopCause::Preempt }),
            [variant(4), number(9), id, variant(1)].concat(),
        ),
        (
            bytes_of(&LogReply::Chunk { offset: 5, bytes: vec![0xaa, 0xbb] }),
            [variant(0), number(5), number(2), vec![0xaa, 0xbb]].concat(),
        ),
    ];
    for (written, expected) in golden {
        assert_eq!(written, expected);
    }
}

#[test]
fn a_frame_above_the_limit_is_refused_on_both_sides_and_leaves_the_buffer_alone() {
    let mut buffer = vec![1, 2, 3];
    let large = LogReply::Chunk { offset: 0, bytes: vec![0; FRAME_BYTES_MAX] };

    let refused = encode(&large, &mut buffer);

    assert!(matches!(refused, Err(EncodeError::TooLarge { .. })), "{refused:?}");
    assert_eq!(buffer, [1, 2, 3]);
    let received = decode::<LogReply>(&vec![0; FRAME_BYTES_MAX + 1]);
    assert!(matches!(received, Err(DecodeError::TooLarge { .. })), "{received:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_cut_into_pieces_comes_together_whatever_came_before(
        rubbish in vec(samples::piece(), 0..5),
        length in 0_usize..3 * PIECE_BYTES_MAX,
    ) {
        let whole: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut assembly = PieceAssembly::default();
        rubbish.into_iter().for_each(|piece| drop(assembly.add(piece)));

        let mut found = None;
        for piece in pieces("a task", &whole) {
            prop_assert!(found.is_none(), "complete before its end");
            prop_assert!(bytes_of(&ToAgent::KernelProfile(piece.clone())).len() < FRAME_BYTES_MAX);
            found = assembly.add(piece);
        }

        prop_assert_eq!(found, Some(("a task".to_owned(), whole)));
    }
}

#[test]
fn the_largest_chunk_of_output_fits_into_a_frame() {
    let chunk = LogReply::Chunk { offset: u64::MAX, bytes: vec![7; LOG_CHUNK_BYTES_MAX] };

    assert_eq!(decode::<LogReply>(&bytes_of(&chunk)).unwrap(), chunk);
    let input = ToSession::Input { offset: u64::MAX, bytes: vec![7; SESSION_CHUNK_BYTES_MAX] };
    assert_eq!(decode::<ToSession>(&bytes_of(&input)).unwrap(), input);
}
