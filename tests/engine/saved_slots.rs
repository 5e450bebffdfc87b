//! Slots saved to files and restored: to the same bits on one device, to the same bytes of a file through all of them.

use crate::testing::fixtures::{Kind, Weights};
use crate::testing::judge::{Kv, NEVER, tokens};
use crate::testing::{fixture, has_gpu};
use elizainference::engine::{self, Engine, EngineOptions, KvType, SavedSlot, SlotId};
use elizainference::{Error, Result, Token};
use std::path::Path;
use std::sync::atomic::AtomicBool;

const TYPES: [Kv; 5] = [
    Kv(KvType::F32, KvType::F32),
    Kv(KvType::F16, KvType::F16),
    Kv(KvType::Q8_0, KvType::Q8_0),
    Kv(KvType::Q8_0, KvType::F32),
    Kv(KvType::F16, KvType::Q8_0),
];

fn open(kind: Kind, kv: impl Into<Kv>, context: u32, gpu_layers: i32) -> Engine {
    let Kv(kv_type, v) = kv.into();
    let kv_type_v = Some(v);
    let options =
        EngineOptions { context, slots: 4, kv_type, kv_type_v, gpu_layers, threads: 2, ..EngineOptions::default() };
    Engine::new(engine::open_model(&fixture(kind, Weights::F32), &options, None).unwrap(), &options).unwrap()
}

/// Where layers can be: on the CPU, and with a GPU there or half there.
fn placements() -> Vec<i32> {
    if has_gpu() { vec![0, -1, 1] } else { vec![0] }
}

fn slot(engine: &mut Engine, number: i32) -> SlotId {
    engine.take_slot(number).unwrap()
}

fn restore(engine: &mut Engine, slot: SlotId, path: &Path) -> Result<bool> {
    let saved = engine.open_saved(path, &NEVER)?;
    engine.restore(slot, saved, &NEVER)
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Logits of the last position and after each of these tokens.
fn follow(engine: &mut Engine, slot: SlotId, tokens: &[Token]) -> Vec<Vec<u32>> {
    let mut rows = vec![bits(engine.head(slot).unwrap())];
    rows.extend(tokens.iter().map(|&token| bits(engine.decode(slot, token, &NEVER).unwrap())));
    rows
}

#[test]
fn what_is_restored_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let text = tokens(60, "saved");
    for gpu_layers in placements() {
        // gemma3's window is shorter than the prompt.
        for kind in [Kind::Llama, Kind::Gemma3] {
            // A software driver takes seconds to open an engine.
            for kv_type in if gpu_layers == 0 { &TYPES[..] } else { &TYPES[1..2] }.iter().copied() {
                let name = format!("{kind:?} {kv_type:?}, {gpu_layers} layers on the GPU");
                let path = folder.path().join(&name);
                let mut first = open(kind, kv_type, 256, gpu_layers);
                let slot = slot(&mut first, 0);
                first.prefill(slot, &text[..40], &NEVER).unwrap();
                first.save(slot, &path, b"a note", &NEVER).unwrap();
                let expected = follow(&mut first, slot, &text[40..]);

                let mut second = open(kind, kv_type, 256, gpu_layers);
                let saved = second.open_saved(&path, &NEVER).unwrap();
                assert_eq!((saved.tokens(), saved.note()), (&text[..40], b"a note".as_slice()), "{name}");
                assert!(second.restore(slot, saved, &NEVER).unwrap(), "{name}: the hidden row was there");
                assert_eq!(second.tokens(slot), &text[..40]);
                assert_eq!(second.stats().forward_passes, 0, "{name}");
                assert!(follow(&mut second, slot, &text[40..]) == expected, "{name}");
                // What was restored serves a longer prompt, and another one that begins alike.
                assert!(restore(&mut second, slot, &path).unwrap());
                assert_eq!(second.prefill(slot, &text[..50], &NEVER).unwrap().reused, 40, "{name}");
                assert!(restore(&mut second, slot, &path).unwrap());
                let other = [&text[..30], &[7, 7, 7]].concat();
                assert_eq!(second.prefill(slot, &other, &NEVER).unwrap().reused, 30, "{name}");
            }
        }
    }
}

/// The file does not tell where it was saved, so it comes back the same from everywhere.
#[test]
fn through_other_devices_and_cells_it_is_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = tokens(150, "around");
    for kv_type in TYPES {
        let path = folder.path().join("first");
        let mut engine = open(Kind::Qwen3, kv_type, 512, 0);
        let one = slot(&mut engine, 0);
        engine.prefill(one, &text, &NEVER).unwrap();
        engine.save(one, &path, &[], &NEVER).unwrap();
        let first = std::fs::read(&path).unwrap();
        for gpu_layers in placements().into_iter().chain([0]) {
            let mut engine = open(Kind::Qwen3, kv_type, 512, gpu_layers);
            let others = [1, 2, 3].map(|number| slot(&mut engine, number));
            for (i, &other) in others.iter().enumerate() {
                engine.prefill(other, &tokens(70, &format!("other {i}")), &NEVER).unwrap();
            }
            // Two holes to lie in, and what is after all.
            engine.truncate(others[0], 3);
            engine.truncate(others[2], 50);
            let kept = others.map(|other| engine.tokens(other).to_vec());
            let beside = folder.path().join("beside");
            engine.save(others[1], &beside, &[], &NEVER).unwrap();
            let before = std::fs::read(&beside).unwrap();
            assert!(restore(&mut engine, one, &path).unwrap());
            engine.save(one, &path, &[], &NEVER).unwrap();
            assert!(std::fs::read(&path).unwrap() == first, "{kv_type:?} by way of {gpu_layers} layers on the GPU");
            // Nobody else's cells were touched.
            assert_eq!(others.map(|other| engine.tokens(other).to_vec()), kept);
            engine.save(others[1], &beside, &[], &NEVER).unwrap();
            let after = std::fs::read(&beside).unwrap();
            assert!(after == before, "{kv_type:?}: another slot, {gpu_layers} layers on the GPU");
        }
    }
}

/// On a GPU too, where a Q8_0 scale has all its bits.
#[test]
fn what_a_gpu_saves_it_restores() {
    if !has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = tokens(40, "gpu");
    for kv_type in TYPES {
        let paths = ["one", "two", "three"].map(|name| folder.path().join(name));
        let mut engine = open(Kind::Llama, kv_type, 256, -1);
        let slots = [0, 1].map(|number| slot(&mut engine, number));
        engine.prefill(slots[0], &text, &NEVER).unwrap();
        engine.save(slots[0], &paths[0], &[], &NEVER).unwrap();
        assert!(restore(&mut engine, slots[1], &paths[0]).unwrap());
        engine.save(slots[1], &paths[1], &[], &NEVER).unwrap();
        assert!(std::fs::read(&paths[0]).unwrap() == std::fs::read(&paths[1]).unwrap(), "{kv_type:?}");
        // A CPU's cache keeps the scales in f16: half a unit in the eleventh place at most.
        let mut cpu = open(Kind::Llama, kv_type, 256, 0);
        assert!(restore(&mut cpu, slots[0], &paths[0]).unwrap());
        cpu.save(slots[0], &paths[2], &[], &NEVER).unwrap();
        let (gpu, cpu) = (std::fs::read(&paths[0]).unwrap(), std::fs::read(&paths[2]).unwrap());
        assert_eq!(![kv_type.0, kv_type.1].contains(&KvType::Q8_0), gpu == cpu, "{kv_type:?}");
        assert_eq!(gpu.len(), cpu.len());
    }
}

/// A slot with a few tokens, saved, and the engine it is of.
fn small(folder: &Path) -> (Engine, SlotId, std::path::PathBuf) {
    let mut engine = open(Kind::Llama, KvType::Q8_0, 64, 0);
    let slot = slot(&mut engine, 2);
    engine.prefill(slot, &tokens(3, "small"), &NEVER).unwrap();
    let path = folder.join("small");
    engine.save(slot, &path, b"note", &NEVER).unwrap();
    (engine, slot, path)
}

/// Opening fails, naming the file; says at which place.
fn place(opened: Result<SavedSlot>, path: &Path) -> String {
    match opened {
        Err(Error::SavedSlot { path: named, place, problem }) => {
            assert_eq!(named, path);
            assert!(!problem.is_empty());
            place
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_damaged_file_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, slot, path) = small(folder.path());
    let whole = std::fs::read(&path).unwrap();
    let broken = folder.path().join("broken");
    for length in 0..whole.len() {
        std::fs::write(&broken, &whole[..length]).unwrap();
        let place = place(engine.open_saved(&broken, &NEVER), &broken);
        assert_eq!(place, if length < 96 { "header" } else { "length" }, "cut at {length}");
    }
    std::fs::write(&broken, [whole.as_slice(), &[0]].concat()).unwrap();
    assert_eq!(place(engine.open_saved(&broken, &NEVER), &broken), "length");
    for at in 0..whole.len() {
        for flip in [1, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            std::fs::write(&broken, &bytes).unwrap();
            let place = place(engine.open_saved(&broken, &NEVER), &broken);
            let header = ["magic", "version", "cache type", "model", "tokens", "gap", "hidden row", "note", "length"];
            let known = if at < 64 { header.iter().any(|name| place.starts_with(name)) } else { false };
            assert!(known || place == "checksum", "byte {at}: {place}");
        }
    }
    assert_eq!(engine.tokens(slot), tokens(3, "small"));
    engine.open_saved(&path, &NEVER).unwrap();
}

/// Numbers in the header that nobody can mean, with a checksum that fits: no panic, no large allocation.
#[test]
fn a_forged_header_is_refused() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let (engine, _, path) = small(folder.path());
    let whole = std::fs::read(&path).unwrap();
    let forged = |at: usize, number: u32| {
        let mut bytes = whole[..whole.len() - 32].to_vec();
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        bytes.extend(Sha256::digest(&bytes));
        let path = folder.path().join("forged");
        std::fs::write(&path, bytes).unwrap();
        place(engine.open_saved(&path, &NEVER), &path)
    };
    for number in [0, 1, 2, 4, 65, u32::MAX] {
        assert!(["tokens at byte 48", "gap at byte 52", "length"].contains(&forged(48, number).as_str()), "{number}");
    }
    assert_eq!([forged(8, 2), forged(8, 3)], ["window at byte 64", "version at byte 8"]);
    assert_eq!([forged(12, 1), forged(12, 77)], ["cache type at byte 12", "cache type at byte 12"]);
    assert_eq!([forged(52, 3), forged(52, 1 << 31)], ["gap at byte 52", "gap at byte 52"]);
    assert_eq!([forged(56, 1), forged(56, u32::MAX)], ["hidden row at byte 56", "hidden row at byte 56"]);
    assert_eq!([forged(60, 5), forged(60, u32::MAX)], ["length", "note at byte 60"]);
    assert_eq!([forged(64, 512), forged(68, u32::MAX)], ["token 0", "token 1"]);
}

#[test]
fn a_file_for_another_engine_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let mut engine = open(Kind::Llama, KvType::F16, 64, 0);
    let own = slot(&mut engine, 0);
    engine.prefill(own, &tokens(40, "foreign"), &NEVER).unwrap();
    engine.save(own, &path, &[], &NEVER).unwrap();
    // The number of a type that both have, as it was before they could differ.
    assert_eq!(std::fs::read(&path).unwrap()[12..16], [1, 0, 0, 0]);
    let f16 = Kv::from(KvType::F16);
    let half = "from a cache of type F16, where this one is F16 (keys) and Q8_0 (values)";
    for (kind, kv_type, context, place, reason) in [
        (
            Kind::Llama,
            KvType::Q8_0.into(),
            64,
            "cache type at byte 12",
            "from a cache of type F16, where this one is Q8_0",
        ),
        (Kind::Llama, Kv(KvType::F16, KvType::Q8_0), 64, "cache type at byte 12", half),
        (Kind::LlamaExtras, f16, 64, "model at byte 16", "another model"),
        (Kind::Qwen3, f16, 64, "model at byte 16", "another model"),
        (Kind::Llama, f16, 32, "tokens at byte 48", "40 tokens, where the context has room for 32"),
    ] {
        let error = open(kind, kv_type, context, 0).open_saved(&path, &NEVER).unwrap_err();
        let text = error.to_string();
        assert!(matches!(&error, Error::SavedSlot { place: at, .. } if at == place), "{text}");
        assert!(text.contains(reason) && text.contains(path.to_str().unwrap()), "{text}");
    }
    // Another file of the same model is the same model; other weights are not.
    let copy = folder.path().join("elsewhere.gguf");
    std::fs::copy(fixture(Kind::Llama, Weights::F32), &copy).unwrap();
    let options = EngineOptions { context: 64, ..EngineOptions::default() };
    let moved = Engine::new(engine::open_model(&copy, &options, None).unwrap(), &options).unwrap();
    moved.open_saved(&path, &NEVER).unwrap();
    let quantised = engine::open_model(&fixture(Kind::Llama, Weights::Q8_0), &options, None).unwrap();
    let quantised = Engine::new(quantised, &options).unwrap();
    assert_eq!(place(quantised.open_saved(&path, &NEVER), &path), "model at byte 16");
    for path in [folder.path().to_path_buf(), folder.path().join("absent")] {
        assert!(matches!(engine.open_saved(&path, &NEVER), Err(Error::Io { path: named, .. }) if named == path));
    }
    std::fs::write(&path, "{\"not\": \"a slot\"}".repeat(20)).unwrap();
    assert_eq!(place(engine.open_saved(&path, &NEVER), &path), "magic at byte 0");
}

#[test]
fn a_save_that_fails_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, own, path) = small(folder.path());
    let before = std::fs::read(&path).unwrap();
    engine.append(own, &[5], &NEVER).unwrap();
    assert_eq!(engine.save(own, &path, &[], &AtomicBool::new(true)), Err(Error::Cancelled));
    assert!(std::fs::read(&path).unwrap() == before);
    let empty = slot(&mut engine, 0);
    assert!(matches!(engine.save(empty, &path, &[], &NEVER), Err(Error::InvalidArgument(p)) if p.contains("Slot 0")));
    let nowhere = folder.path().join("no").join("such");
    assert!(matches!(engine.save(own, &nowhere, &[], &NEVER), Err(Error::Io { path, .. }) if path == nowhere));
    assert!(matches!(engine.save(own, Path::new("/"), &[], &NEVER), Err(Error::InvalidArgument(_))));
    assert!(matches!(engine.save(own, folder.path(), &[], &NEVER), Err(Error::Io { .. })));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["small"], "nothing else is left");
    assert_eq!(engine.tokens(own).len(), 4);
    engine.save(own, &path, &[], &NEVER).unwrap();
    assert_eq!(engine.open_saved(&path, &NEVER).unwrap().tokens().len(), 4, "the whole of the new one");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "prompts are nobody else's");
    }
}

#[test]
fn a_restore_that_ends_early_leaves_an_empty_slot() {
    let folder = tempfile::tempdir().unwrap();
    let (mut engine, own, path) = small(folder.path());
    let saved = engine.open_saved(&path, &NEVER).unwrap();
    assert_eq!(engine.open_saved(&path, &AtomicBool::new(true)).unwrap_err(), Error::Cancelled);
    assert_eq!(engine.restore(own, saved, &AtomicBool::new(true)), Err(Error::Cancelled));
    assert!(engine.tokens(own).is_empty());
    // The file is written over between the check and the reading.
    let saved = engine.open_saved(&path, &NEVER).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 40;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = engine.restore(own, saved, &NEVER).unwrap_err();
    assert!(matches!(&error, Error::SavedSlot { place, .. } if place == "checksum"), "{error}");
    assert!(engine.tokens(own).is_empty());
    // All cells are free again.
    let text = tokens(64, "all");
    assert_eq!(engine.prefill(own, &text, &NEVER).unwrap().tokens, 64);
}

#[test]
fn other_slots_make_room_and_a_gap_stays_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gap");
    let text = tokens(50, "gap");
    let mut engine = open(Kind::Llama, KvType::F32, 64, 0);
    let slots = [0, 1, 2].map(|number| slot(&mut engine, number));
    engine.prefill(slots[0], &text, &NEVER).unwrap();
    engine.remove(slots[0], 20..30).unwrap();
    engine.save(slots[0], &path, &[], &NEVER).unwrap();
    engine.truncate(slots[0], 0);
    engine.prefill(slots[1], &tokens(20, "second"), &NEVER).unwrap();
    engine.prefill(slots[2], &tokens(10, "third"), &NEVER).unwrap();
    // The row of the last position went with the gap.
    assert!(!restore(&mut engine, slots[0], &path).unwrap());
    let left = [&text[..20], &text[30..]].concat();
    assert_eq!(slots.map(|slot| engine.tokens(slot).len()), [40, 0, 10], "the one used least recently is gone");
    assert_eq!(engine.tokens(slots[0]), left);
    assert!(matches!(engine.head(slots[0]), Err(Error::InvalidArgument(_))));
    assert_eq!(engine.prefill(slots[0], &left, &NEVER).unwrap().reused, 20);
}
