//! Loads with and without a folder for packed weights. The oracle is `quant::dequantize` of the file's own rows.

use super::*;
use crate::backend::cpu::packed::cache::GIVEN_UP;
use crate::backend::memory::Component;
use crate::gguf::Writer;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::SystemTime;

const SHAPES: [(TensorType, usize, usize); 3] =
    [(TensorType::Q8_0, 64, 40), (TensorType::Q4_K, 512, 33), (TensorType::F16, 48, 16)];

/// A model file and a folder for packed weights.
struct Setting {
    root: tempfile::TempDir,
    specs: Vec<WeightSpec>,
    wanted: Wanted,
}

/// Bytes of blocks whose scales are small numbers.
fn blocks(ty: TensorType, n_in: usize, n_out: usize, seed: u32) -> Vec<u8> {
    let bytes = n_in / ty.block_len() * ty.block_bytes() * n_out;
    let mut state = seed;
    let random = (0..bytes).map(|_| {
        state = state.wrapping_mul(0x915f_77f5).wrapping_add(0x3c6e_f372);
        (state >> 24) as u8
    });
    let mut data: Vec<u8> = random.collect();
    // Halves without an infinity or NaN, wherever a scale may be.
    data.iter_mut().skip(1).step_by(2).for_each(|high| *high &= 0x3b);
    data
}

impl Setting {
    fn new() -> Setting {
        let (root, usage) = (tempfile::tempdir().unwrap(), WeightUse::MatMul);
        let specs = SHAPES.iter().enumerate().map(|(i, &(ty, n_in, n_out))| WeightSpec {
            first_row: 0,
            name: format!("m{i}"),
            n_in,
            n_out,
            ty,
            usage,
        });
        let wanted = Wanted {
            uses: vec![Some(usage); SHAPES.len()],
            components: vec![Component::Layers; SHAPES.len()],
            together: Vec::new(),
        };
        let setting = Setting { specs: specs.collect(), wanted, root };
        fs::create_dir(setting.folder().path).unwrap();
        setting
    }

    fn folder(&self) -> Folder {
        Folder { path: self.root.path().join("cache"), most: 1 << 20, start: Some([1; 32]) }
    }

    /// A model file of this name.
    fn write(&self, name: &str, seed: u32) -> PathBuf {
        let (path, mut writer) = (self.root.path().join(name), Writer::new(3));
        for (i, &(ty, n_in, n_out)) in SHAPES.iter().enumerate() {
            writer.tensor(format!("m{i}"), &[n_in as u64, n_out as u64], ty, blocks(ty, n_in, n_out, seed + i as u32));
        }
        fs::write(&path, writer.to_bytes().unwrap()).unwrap();
        path
    }

    fn load(&self, folder: Option<Folder>, path: &Path) -> CpuWeights {
        let file = File::open(path).unwrap();
        let mut told = Vec::new();
        let mut hear = |fraction| {
            told.push(fraction);
            true
        };
        let weights = load_with(folder, &file, &self.specs, &self.wanted, 2, Some(&mut hear)).unwrap();
        assert_eq!(told.last(), Some(&1.0));
        weights
    }

    /// Load, compare every row with the file's, and tell whether the weights are mapped.
    fn check(&self, folder: Option<Folder>, path: &Path) -> bool {
        let weights = self.load(folder, path);
        let file = File::open(path).unwrap();
        let mut mapped = Vec::new();
        for (i, spec) in self.specs.iter().enumerate() {
            let panels = weights.matrix(WeightId(i as u32)).unwrap();
            mapped.push(matches!(panels.memory, PanelMemory::Mapped(..)));
            let source = file.read(file.tensor(&spec.name).unwrap()).unwrap();
            let (mut expected, mut row) = (vec![0.0; spec.n_in * spec.n_out], vec![0.0; spec.n_in]);
            dequantize(spec.ty, &source, &mut expected).unwrap();
            for (n, expected) in expected.chunks(spec.n_in).enumerate() {
                panels.dequantize_row(n, &mut row).unwrap();
                assert_eq!(row.map_bits(), expected.to_vec().map_bits(), "row {n} of {}", spec.name);
            }
        }
        mapped.dedup();
        assert_eq!(mapped.len(), 1, "all or none");
        mapped[0]
    }

    /// The files in the folder, by name.
    fn kept(&self) -> Vec<PathBuf> {
        let mut all: Vec<_> = fs::read_dir(self.folder().path).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|x| x.to_bits()).collect()
    }
}

/// Another file of this name. The one before may be gone, where a load could not replace it.
fn replace(path: &Path, bytes: &[u8]) {
    if cfg!(windows) {
        settle(path);
    }
    if let Err(error) = fs::remove_file(path) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
    }
    fs::write(path, bytes).unwrap();
}

/// Waits a while for the mark of the load that wrote a file: under Wine one that is removed before takes the next file
/// of its name along.
fn settle(path: &Path) {
    let is_marked = || fs::read(path).is_ok_and(|bytes| bytes.get(112..120) == Some(b"synced.\n"));
    for _ in 0..100 {
        if is_marked() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn age(path: &Path, by: Duration) {
    fs::File::options().write(true).open(path).unwrap().set_modified(SystemTime::now() - by).unwrap();
}

#[test]
fn the_second_load_maps_what_the_first_one_wrote() {
    let setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    assert!(!setting.check(None, &path));
    assert_eq!(setting.kept().len(), 0);
    assert!(setting.check(Some(setting.folder()), &path));
    let [kept] = &setting.kept()[..] else { panic!("{:?}", setting.kept()) };
    age(kept, Duration::from_secs(3600));
    let header = fs::read(kept).unwrap()[..100].to_vec();
    assert!(setting.check(Some(setting.folder()), &path));
    assert_eq!(setting.kept(), std::slice::from_ref(kept));
    assert_eq!(fs::read(kept).unwrap()[..100], header, "it was not written again");
    let since = fs::metadata(kept).unwrap().modified().unwrap().elapsed().unwrap();
    assert!(since < Duration::from_secs(1800), "a use makes it young: {since:?}");
}

#[test]
fn a_changed_file_is_packed_anew() {
    let setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    age(&path, Duration::from_secs(60));
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    setting.check(Some(setting.folder()), &path);
    let bytes = fs::metadata(&path).unwrap().len();
    // Another time, then the same time and size with another content, then the same content elsewhere.
    setting.write("a.gguf", 7);
    assert!(setting.check(Some(setting.folder()), &path));
    assert_eq!(setting.kept().len(), 2);
    setting.write("a.gguf", 9);
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
    assert!(setting.check(Some(setting.folder()), &path));
    assert_eq!(setting.kept().len(), 3);
    let moved = setting.root.path().join("b.gguf");
    fs::rename(&path, &moved).unwrap();
    assert!(setting.check(Some(setting.folder()), &moved));
    assert_eq!(setting.kept().len(), 4);
}

/// The matrices in a file each: a change of any is noticed, also one that makes it older.
#[test]
fn a_changed_part_is_packed_anew() {
    let setting = Setting::new();
    let path = |number: usize| setting.root.path().join(format!("a-{number:05}-of-00003.gguf"));
    let write = |i: usize, seed: u32| {
        let (ty, n_in, n_out) = SHAPES[i];
        let mut writer = Writer::new(3);
        writer.set("split.no", i as u16).set("split.count", 3u16).set("split.tensors.count", 3);
        writer.tensor(format!("m{i}"), &[n_in as u64, n_out as u64], ty, blocks(ty, n_in, n_out, seed));
        fs::write(path(i + 1), writer.to_bytes().unwrap()).unwrap();
    };
    (0..3).for_each(|i| write(i, 5));
    assert!(setting.check(Some(setting.folder()), &path(1)));
    assert!(setting.check(Some(setting.folder()), &path(1)));
    assert_eq!(setting.kept().len(), 1);
    write(2, 6);
    age(&path(3), Duration::from_secs(60));
    assert!(setting.check(Some(setting.folder()), &path(1)));
    assert_eq!(setting.kept().len(), 2);
}

#[test]
fn other_matrices_of_a_file_are_another_entry() {
    let mut setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    setting.check(Some(setting.folder()), &path);
    setting.wanted.uses[0] = None;
    drop(setting.load(Some(setting.folder()), &path));
    assert_eq!(setting.kept().len(), 2);
    setting.wanted.uses.fill(None);
    drop(setting.load(Some(setting.folder()), &path));
    assert_eq!(setting.kept().len(), 2, "nothing is kept of nothing");
}

#[test]
fn broken_files_are_found_out_and_written_anew() {
    let setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    setting.check(Some(setting.folder()), &path);
    let kept = setting.kept().remove(0);
    let whole = fs::read(&kept).unwrap();
    // Windows replaces no file that the load before still marks as synced.
    let tries = if cfg!(windows) { 100 } else { 1 };
    let breaks = |broken: &[u8], what: &str| {
        let mut again = (0..tries).map(|_| {
            replace(&kept, broken);
            setting.check(Some(setting.folder()), &path)
        });
        assert!(again.any(|is_mapped| is_mapped), "{what}");
        let again = fs::read(&kept).unwrap();
        assert_eq!((&again[..112], &again[4096..]), (&whole[..112], &whole[4096..]), "{what}");
    };
    for at in 0..112 {
        let mut broken = whole.clone();
        broken[at] ^= 1;
        // What would be seen if the file were used.
        broken[4096..].fill(0);
        breaks(&broken, &format!("byte {at}"));
    }
    for bytes in [0, 1, 111, 112, 120, 4096, whole.len() - 1] {
        breaks(&whole[..bytes], &format!("cut at {bytes}"));
    }
    breaks(&[&whole[..], &[0]].concat(), "longer");
    assert_eq!(setting.kept(), [kept]);
}

#[test]
fn what_the_system_may_have_lost_is_not_used() {
    let setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    setting.check(Some(setting.folder()), &path);
    let kept = setting.kept().remove(0);
    let until = Instant::now() + Duration::from_secs(60);
    while fs::read(&kept).unwrap()[112..120] != *b"synced.\n" {
        assert!(Instant::now() < until, "never marked as synced");
        std::thread::sleep(Duration::from_millis(1));
    }
    let marked = fs::read(&kept).unwrap();
    let mut lost = marked.clone();
    lost[4096..].fill(0);
    lost[112..120].fill(0);
    for start in [None, Some([2; 32])] {
        // With the mark what is there is used, whatever it is; the weights are those of the file, so compare these.
        replace(&kept, &marked);
        setting.check(Some(Folder { start, ..setting.folder() }), &path);
        assert_eq!(fs::read(&kept).unwrap()[..112], marked[..112], "it was not written again");
        replace(&kept, &lost);
        setting.check(Some(Folder { start, ..setting.folder() }), &path);
    }
}

#[test]
fn the_oldest_files_make_room() {
    let setting = Setting::new();
    let [a, b, c, d] = [1, 11, 21, 31].map(|seed| setting.write(&format!("{seed}.gguf"), seed));
    let load = |path: &Path, most: u64| setting.check(Some(Folder { most, ..setting.folder() }), path);
    load(&a, 1 << 20);
    let bytes = fs::metadata(&setting.kept()[0]).unwrap().len();
    let of_a = setting.kept().remove(0);
    load(&b, 3 * bytes);
    let of_b = setting.kept().into_iter().find(|file| *file != of_a).unwrap();
    age(&of_a, Duration::from_secs(7200));
    age(&of_b, Duration::from_secs(3600));
    load(&c, 3 * bytes);
    assert_eq!(setting.kept().len(), 3);
    // A use makes the oldest the youngest, so the other goes.
    load(&a, 3 * bytes);
    // Windows may keep a file that is mapped.
    let mapped = Some(setting.load(Some(setting.folder()), &b)).filter(|_| cfg!(unix));
    age(&of_b, Duration::from_secs(3600));
    load(&d, 3 * bytes);
    assert!(of_a.exists() && !of_b.exists());
    assert_eq!(setting.kept().len(), 3);
    if let Some(removed) = mapped {
        removed.matrix(WeightId(0)).unwrap().dequantize_row(0, &mut [0.0; 64]).unwrap();
    }
    // One that is larger than the bound is not kept, and nothing is removed for it.
    assert!(!load(&b, bytes - 1));
    assert_eq!(setting.kept().len(), 3);
    // What nobody completes any more goes with the next file, what is being written stays.
    let [old, new] = ["0".repeat(32) + ".1-1", "1".repeat(32) + ".1-2"].map(|name| {
        let path = setting.folder().path.join(format!("weights-{name}"));
        fs::write(&path, "part").unwrap();
        path
    });
    age(&old, GIVEN_UP + Duration::from_secs(60));
    load(&b, 4 * bytes);
    assert!(!old.exists() && new.exists());
}

#[cfg(unix)]
#[test]
fn the_next_one_goes_where_the_oldest_cannot_be_removed() {
    let setting = Setting::new();
    let [a, b] = [1, 11].map(|seed| setting.write(&format!("{seed}.gguf"), seed));
    let load = |path: &Path, most: u64| setting.check(Some(Folder { most, ..setting.folder() }), path);
    load(&a, 1 << 20);
    let of_a = setting.kept().remove(0);
    let bytes = fs::metadata(&of_a).unwrap().len();
    // A folder is nothing that can be removed like a file.
    let stays = setting.folder().path.join(format!("weights-{}", "0".repeat(32)));
    fs::create_dir(&stays).unwrap();
    let small = fs::metadata(&stays).unwrap().len();
    let old = SystemTime::now() - Duration::from_secs(7200);
    fs::File::open(&stays).unwrap().set_modified(old).unwrap();
    assert!(load(&b, bytes + small), "there is room without `a`");
    assert!(stays.exists() && !of_a.exists());
    assert!(!load(&a, bytes + small - 1), "not beside the folder");
}

#[test]
fn loads_at_once_keep_one_whole_file() {
    let setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    let together = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                together.wait();
                assert!(setting.check(Some(setting.folder()), &path));
            });
        }
    });
    assert_eq!(setting.kept().len(), 1);
    assert!(setting.check(Some(setting.folder()), &path));
}

#[test]
fn what_cannot_be_written_is_packed_into_memory() {
    let setting = Setting::new();
    let path = setting.write("a.gguf", 1);
    let gone = Folder { path: setting.root.path().join("gone"), ..setting.folder() };
    assert!(!setting.check(Some(gone), &path));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |mode| fs::set_permissions(setting.folder().path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        assert!(!setting.check(Some(setting.folder()), &path), "others could write there");
        mode(0o700);
    }
    // A write that fails half-way.
    let file = File::open(&path).unwrap();
    let matrices: Vec<_> = SHAPES
        .iter()
        .enumerate()
        .map(|(item, &(ty, n_in, n_out))| Matrix {
            first_row: 0,
            item,
            layout: Layout::new(ty, n_in, n_out).unwrap(),
            info: file.tensor(&format!("m{item}")).unwrap(),
        })
        .collect();
    let sizes: Vec<_> = matrices.iter().map(|matrix| (matrix.info, matrix.layout.bytes())).collect();
    let place = Place::find(setting.folder(), &file, &sizes).unwrap();
    let mut new = place.create().unwrap();
    new.make_read_only();
    assert!(pack_to_file(new, &place.parts, &file, &matrices, 2, &mut None).unwrap().is_none());
    assert_eq!(setting.kept().len(), 0, "nothing half is left");
    // A cancelled load leaves nothing either.
    let load = load_with(Some(setting.folder()), &file, &setting.specs, &setting.wanted, 2, Some(&mut |_| false));
    assert!(matches!(load, Err(Error::Cancelled)));
    assert_eq!(setting.kept().len(), 0);
}

/// A cache would serve panels of an older layout, so a new layout needs a new number (`cache::LAYOUT`).
#[test]
#[cfg(target_arch = "x86_64")]
fn a_new_layout_has_a_new_number() {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for &ty in TensorType::ALL.iter().filter(|&&ty| PackedMatrix::supports(ty)) {
        let mut panels = PackedMatrix::new(ty, 512, 33).unwrap();
        panels.pack(&blocks(ty, 512, 33, 5), 0..3).unwrap();
        // SAFETY: the matrix's own bytes.
        hash.update(unsafe { std::slice::from_raw_parts(panels.panel(0), panels.bytes()) });
    }
    let found: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((super::super::cache::LAYOUT, found.as_str()), (2, "1c4c00f3f2ae2748"));
}
