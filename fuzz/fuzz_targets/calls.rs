//! Every C call with any arguments that the header allows: pointers are NULL or good for what their length says,
//! handles are open, closed, NULL or made up, structures have any size and any numbers.
#![no_main]
#![allow(dead_code)]

#[path = "../../tests/testing/fixtures.rs"]
mod fixtures;
mod input;
#[path = "../../tests/testing/rng.rs"]
mod rng;
#[path = "../../tests/testing/vocabulary.rs"]
mod vocabulary;

use elizainference::ffi::*;
use elizainference::trie::Candidate as Data;
use fixtures::{Kind, Weights};
use input::Input;
use libfuzzer_sys::fuzz_target;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};
use std::sync::LazyLock;

const TRIES: &[&str] = &[
    r#"{"descriptors":[{"path":"p","leaves":[{"name":"a","tokens":[300]},{"name":"b","tokens":[301,302]}]}]}"#,
    r#"{"descriptors":[{"path":"q","leaves":[{"name":"x","tokens":[1,2,3,4,5]},{"name":"y","tokens":[1]}]}]}"#,
    r#"{"descriptors":[]}"#,
    r#"{"descriptors":[{"path":"p","leaves":[{"name":"z","tokens":[70000]}]}]}"#,
    "{",
];
const GRAMMARS: &[&str] = &[
    r#"{"gbnf":"root ::= \"ab\" [cd] \"ef\""}"#,
    r#"{"gbnf":"root ::= [^x]*","jump_ahead":"off"}"#,
    r#"{"gbnf":"root ::= \"a\" root | \"b\"","lazy":true,"triggers":[{"type":"word","value":"a"}]}"#,
    r#"{"json_schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}"#,
    r#"{"gbnf":"root ::= (","root":"other"}"#,
    r#"{"gbnf":"root ::= <[5]> <[6]>"}"#,
    "{",
];
const TEXTS: &[&str] = &[
    "",
    "a",
    "Hello, little girl",
    "p",
    "q",
    "top_k=4;greedy",
    "temperature=0.7;top_p=0.9;draw",
    "f16",
    "q8_0",
    "cpu",
    "general.name",
    "tokenizer.ggml.tokens",
    "llama.block_count",
    "<s>",
    "/nowhere",
    "\n\n",
];

struct Place {
    model: CString,
    slot: CString,
    store: CString,
    /// Keeps the weights while handles come and go.
    _open: usize,
    _folder: tempfile::TempDir,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let model = fixtures::write(folder.path(), Kind::LlamaShallow, Weights::Q8_0);
    let model = CString::new(model.as_os_str().as_bytes()).unwrap();
    let slot = CString::new(folder.path().join("slot").as_os_str().as_bytes()).unwrap();
    let store = CString::new(folder.path().join("store").as_os_str().as_bytes()).unwrap();
    // SAFETY: a terminated path.
    let open = unsafe { eliza_inference_llm_stream_open(model.as_ptr(), 64, 1, 0) };
    assert!(!open.is_null());
    Place { model, slot, store, _open: open.addr(), _folder: folder }
});

extern "C" fn on_token(_: i32, text: *const c_char, _: bool) {
    // SAFETY: the library's texts are terminated.
    assert!(unsafe { CStr::from_ptr(text) }.to_str().is_ok());
}

extern "C" fn on_text(_: i32, text: *const c_char, length: usize, _: bool, data: *mut c_void) {
    assert_eq!(data.addr(), 8);
    // SAFETY: the library's texts have their length.
    assert!(std::str::from_utf8(unsafe { std::slice::from_raw_parts(text.cast(), length) }).is_ok());
}

extern "C" fn on_progress(_: f32, data: *mut c_void) -> i32 {
    (data.addr() & 1) as i32
}

extern "C" fn on_log(_: i32, text: *const c_char, _: *mut c_void) {
    // SAFETY: the library's texts are terminated.
    assert!(unsafe { CStr::from_ptr(text) }.to_str().is_ok());
}

/// What a host has in memory for one call.
#[derive(Default)]
struct Memory {
    texts: Vec<CString>,
    lists: Vec<Vec<*const c_char>>,
    error: *mut c_char,
}

impl Memory {
    fn text(&mut self, input: &mut Input<'_>) -> *const c_char {
        let bytes = match input.below(8) {
            0 => return null(),
            1 => input.bytes(60).iter().copied().filter(|&byte| byte != 0).collect(),
            _ => input.pick(TEXTS).as_bytes().to_vec(),
        };
        self.texts.push(CString::new(bytes).unwrap());
        self.texts[self.texts.len() - 1].as_ptr()
    }

    fn texts(&mut self, input: &mut Input<'_>) -> (*const *const c_char, usize) {
        if input.below(8) == 0 {
            return (null(), input.below(2));
        }
        let list: Vec<_> = (0..input.below(6)).map(|_| self.text(input)).collect();
        let length = list.len();
        self.lists.push(list);
        (self.lists[self.lists.len() - 1].as_ptr(), length)
    }

    fn error(&mut self, input: &mut Input<'_>) -> *mut *mut c_char {
        if input.below(4) == 0 { null_mut() } else { &raw mut self.error }
    }
}

fn path(input: &mut Input<'_>, memory: &mut Memory) -> *const c_char {
    match input.below(8) {
        0 => memory.text(input),
        1 => PLACE.slot.as_ptr(),
        _ => PLACE.model.as_ptr(),
    }
}

fn tokens(input: &mut Input<'_>) -> Vec<i32> {
    let token = |input: &mut Input<'_>| match input.below(16) {
        0 => input.number() as i32,
        _ => input.below(512) as i32,
    };
    (0..input.below(80)).map(|_| token(input)).collect()
}

/// A list as a pointer and a length, at times NULL.
fn array<T>(input: &mut Input<'_>, list: &[T]) -> (*const T, usize) {
    if input.below(16) == 0 { (null(), list.len()) } else { (list.as_ptr(), list.len()) }
}

/// A structure of any bytes; its size is set, and pointers are the caller's to set.
fn structure<T>(input: &mut Input<'_>) -> T {
    // SAFETY: the structures of the header are numbers, pointers and optional functions, which may all be zero.
    let mut made: T = unsafe { std::mem::zeroed() };
    let any = input.below(4) == 0;
    // SAFETY: `made` has so many bytes; a pointer among them is not used before the caller sets it.
    let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut made).cast::<u8>(), size_of::<T>()) };
    if any {
        bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&input.number().to_le_bytes()));
    }
    let size = match input.below(8) {
        0 => input.below(size_of::<T>() + 1) as u32,
        _ => size_of::<T>() as u32,
    };
    bytes[..4].copy_from_slice(&size.to_le_bytes());
    made
}

fn open_options(input: &mut Input<'_>, memory: &mut Memory) -> OpenOptions {
    let mut options: OpenOptions = structure(input);
    options.model_path = path(input, memory);
    options.context_size_tokens = input.pick(&[64, 64, 16, 1, 0, -1, i32::MIN, 100]);
    options.num_threads = input.pick(&[1, 1, 2, 0, -1, i32::MAX]);
    options.gpu_layers = input.pick(&[0, 0, 0, 1, -1, -2, i32::MAX]);
    options.device = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.kv_type = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.kv_type_v = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.tensor_split = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.tensor_devices = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.draft = if input.below(8) == 0 { path(input, memory) } else { null() };
    options.store_directory = if input.flag() { PLACE.store.as_ptr() } else { null() };
    options.progress = if input.flag() { Some(on_progress) } else { None };
    options.progress_user_data = std::ptr::without_provenance_mut(usize::from(input.below(16) == 0));
    options
}

fn sampling_options(input: &mut Input<'_>, memory: &mut Memory, bias: &(Vec<i32>, Vec<f32>)) -> SamplingOptions {
    let mut options: SamplingOptions = structure(input);
    if input.flag() {
        (options.min_p, options.repeat_penalty) = (input.float(), input.float());
        (options.presence_penalty, options.frequency_penalty) = (input.float(), input.float());
        (options.top_k, options.repeat_last_n) = (input.number() as i32, input.number() as i32);
    }
    if input.flag() {
        (options.dry_multiplier, options.dry_base) = (input.float(), input.float());
        (options.mirostat_tau, options.adaptive_target) = (input.float(), input.float());
        (options.typical_p, options.xtc_probability) = (input.float(), input.float());
        (options.dry_last_n, options.min_keep) = (input.number() as i32, input.number() as u32);
        (options.mirostat, options.generator) = (input.below(4) as u32, input.below(3) as u32);
    }
    (options.dry_breakers, options.n_dry_breakers) = memory.texts(input);
    options.samplers = if input.below(8) == 0 { memory.text(input) } else { null() };
    options.reasoning_start = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.reasoning_end = if input.below(4) == 0 { memory.text(input) } else { null() };
    options.n_candidates = input.below(600) as u32;
    options.gbnf_grammar = if input.below(8) == 0 { memory.text(input) } else { null() };
    (options.stop, options.n_stop) = memory.texts(input);
    let (ids, values) = bias;
    (options.logit_bias_ids, options.logit_bias_values) = (ids.as_ptr(), values.as_ptr());
    options.n_logit_bias = ids.len().min(values.len());
    options
}

/// One call. `open` are the handles that are open, `samplers` those that were made.
fn call(input: &mut Input<'_>, open: &mut Vec<FfiLlmHandle>, samplers: &mut Vec<*mut LlamaSampler>) {
    let mut memory = Memory::default();
    let which = input.below(62);
    let handle = match input.below(24) {
        0 => null_mut(),
        1 => std::ptr::without_provenance_mut(input.u32() as usize),
        n if open.is_empty() || n == 2 => std::ptr::without_provenance_mut(0x10),
        n => open[n % open.len()],
    };
    let sampler = if samplers.is_empty() || input.below(8) == 0 { null_mut() } else { input.pick(samplers) };
    let slot = if input.below(8) == 0 { input.number() as i32 } else { input.below(4) as i32 - 1 };
    let switch = input.below(2) as c_int;
    let out_error = memory.error(input);
    let mut gone = Vec::new();
    // SAFETY: what the header asks of every call: pointers are null or have what their lengths say, texts are
    // terminated, samplers are alive and used by one thread.
    unsafe {
        match which {
            0 if open.len() < 3 => {
                let opened = eliza_inference_llm_stream_open(path(input, &mut memory), 64, 1, 0);
                open.extend(Some(opened).filter(|handle| !handle.is_null()));
            }
            1 if open.len() < 3 => {
                let options = open_options(input, &mut memory);
                let opened = eliza_inference_llm_stream_open_ex(&raw const options, out_error);
                open.extend(Some(opened).filter(|handle| !handle.is_null()));
            }
            2 => {
                eliza_inference_llm_stream_close(handle);
                open.retain(|&one| one != handle);
            }
            3 => {
                assert!(!eliza_inference_abi_version().is_null());
                assert_eq!(eliza_inference_llm_stream_supported(), 1);
            }
            4 => assert!(eliza_inference_default_thread_count() > 0),
            5 => gone.push(eliza_inference_devices_json(out_error)),
            6 => {
                let options = open_options(input, &mut memory);
                gone.push(eliza_inference_plan_json(&raw const options, out_error));
            }
            7..=11 => {
                let list = tokens(input);
                let (list, n) = array(input, &list);
                eliza_inference_llm_stream_prefill(handle, list, n, slot);
            }
            12 => {
                let list = tokens(input);
                let (list, n) = array(input, &list);
                eliza_inference_llm_stream_start_prefill(handle, list, n, slot, out_error);
            }
            13..=15 => {
                let callback: TokenCallback = if input.flag() { Some(on_token) } else { None };
                let most = input.pick(&[3, 1, 0, 8, -1, i32::MIN, i32::MAX]);
                eliza_inference_llm_stream_generate(handle, most, input.float(), input.float(), callback);
            }
            16 => {
                let callback: TokenCallback2 = if input.flag() { Some(on_text) } else { None };
                let data = std::ptr::without_provenance_mut(8);
                let (t, p) = (input.float(), input.float());
                eliza_inference_llm_stream_generate_ex(handle, 3, t, p, callback, data, out_error);
            }
            17 => drop(eliza_inference_llm_stream_cancel(handle)),
            18..=20 => {
                let text = if input.below(4) == 0 { input.bytes(200) } else { input.pick(TRIES).as_bytes() };
                let (json, n) = array(input, text);
                let mode = if input.below(8) == 0 { input.number() as c_int } else { input.below(3) as c_int };
                eliza_inference_set_token_trie(handle, json.cast(), n, mode);
            }
            21 => drop(eliza_inference_clear_token_trie(handle)),
            22 => drop(eliza_inference_arm_token_trie(handle, memory.text(input))),
            57 => {
                let text = if input.below(4) == 0 { input.bytes(200) } else { input.pick(GRAMMARS).as_bytes() };
                let (json, n) = array(input, text);
                eliza_inference_set_grammar(handle, json.cast(), n);
            }
            58 => drop(eliza_inference_clear_grammar(handle)),
            23 => gone.push(eliza_inference_score_token_trie(handle, out_error)),
            24 => {
                let (names, n) = memory.texts(input);
                let (place, before, after) = (memory.text(input), memory.text(input), memory.text(input));
                let mut warnings = null_mut();
                let made = eliza_inference_build_token_trie(
                    handle,
                    place,
                    names,
                    n,
                    before,
                    after,
                    switch,
                    &raw mut warnings,
                    out_error,
                );
                gone.extend([made, warnings]);
            }
            25 => drop(eliza_inference_llm_stream_save_slot(handle, slot, PLACE.slot.as_ptr(), out_error)),
            26 => drop(eliza_inference_llm_stream_restore_slot(handle, slot, path(input, &mut memory), out_error)),
            27 if samplers.len() < 4 => {
                let text = memory.text(input);
                let json = CString::new(input.pick(TRIES)).unwrap();
                let json = if input.below(4) == 0 { text } else { json.as_ptr() };
                let made = llama_sampler_init_token_trie(null(), json, input.below(4) as c_int);
                samplers.extend(Some(made).filter(|made| !made.is_null()));
            }
            59 if samplers.len() < 4 => {
                let text = input.pick(GRAMMARS).as_bytes();
                let (json, n) = array(input, text);
                let made = eliza_inference_sampler_init_grammar(handle, null(), json.cast(), n);
                samplers.extend(Some(made).filter(|made| !made.is_null()));
            }
            28 => drop(eliza_inference_set_host_sampler_init(None)),
            29 => drop(eliza_inference_sampler_name(sampler)),
            30 => drop(eliza_inference_sampler_accept(sampler, input.number() as i32)),
            31 => {
                let ids = tokens(input);
                let mut list: Vec<Data> = ids.iter().map(|&id| Data { id, logit: input.float(), p: 0.0 }).collect();
                let data = if input.below(16) == 0 { null_mut() } else { list.as_mut_ptr() };
                let selected = i64::from(input.number() as i32);
                let mut array = TokenDataArray { data, size: list.len(), selected, sorted: 0 };
                let array = if input.below(16) == 0 { null_mut() } else { &raw mut array };
                eliza_inference_sampler_apply(sampler, array);
            }
            32 => drop(eliza_inference_sampler_reset(sampler)),
            33 => drop(eliza_inference_sampler_arm(sampler, memory.text(input))),
            34 if samplers.len() < 4 => {
                let made = eliza_inference_sampler_clone(sampler);
                samplers.extend(Some(made).filter(|made| !made.is_null()));
            }
            35 => {
                eliza_inference_sampler_free(sampler);
                samplers.retain(|&one| one != sampler);
            }
            36 => drop(eliza_inference_llm_stream_status(handle)),
            37 => gone.push(eliza_inference_llm_stream_take_error(handle)),
            38 => {
                let mut code = 0;
                let out = if input.flag() { null_mut() } else { &raw mut code };
                gone.push(eliza_inference_take_last_failure(out));
                gone.push(eliza_inference_take_last_error());
                gone.push(eliza_inference_next_log_line(out));
                eliza_inference_set_trie_cache_limit(u64::from(input.number()));
            }
            39 | 40 => {
                let (mut ids, mut text) = (vec![0; input.below(10)], vec![0u8; input.below(300)]);
                let (n_ids, n_text, wait) = (ids.len(), text.len(), input.pick(&[0, 1, 5]));
                let mut n = 0;
                let (ids, text, n) = (ids.as_mut_ptr(), text.as_mut_ptr().cast(), &raw mut n);
                if which == 39 {
                    eliza_inference_llm_stream_poll(handle, wait, ids, n_ids, n, text, n_text, out_error);
                } else {
                    let mut drafted = 0;
                    let count = if input.flag() { null_mut() } else { &raw mut drafted };
                    eliza_inference_llm_stream_next(handle, ids, n_ids, n, text, n_text, count, count, out_error);
                }
            }
            41 => {
                let mut options: SamplingOptions = structure(input);
                eliza_inference_llm_stream_sampling_defaults(handle, &raw mut options);
            }
            42 => {
                let bias = (tokens(input), (0..input.below(8)).map(|_| input.float()).collect());
                let options = sampling_options(input, &mut memory, &bias);
                eliza_inference_llm_stream_configure(handle, &raw const options, out_error);
            }
            43 => drop(eliza_inference_llm_stream_set_chain(handle, slot, memory.text(input), out_error)),
            44 => {
                let mut usage: Usage = structure(input);
                eliza_inference_llm_stream_usage(handle, &raw mut usage);
                gone.push(eliza_inference_llm_stream_usage_json(handle));
            }
            45 => {
                let mut list: Vec<Candidate> = (0..input.below(8)).map(|_| std::mem::zeroed()).collect();
                let mut sampled: Sampled = structure(input);
                (sampled.candidates, sampled.candidates_cap) = (list.as_mut_ptr(), list.len());
                eliza_inference_llm_stream_sampled(handle, slot, &raw mut sampled);
            }
            46 => {
                let text = if input.flag() { input.bytes(200) } else { input.pick(TEXTS).as_bytes() };
                let ((text, n), mut ids, mut count) = (array(input, text), null_mut(), 0);
                let out = if input.below(16) == 0 { null_mut() } else { &raw mut ids };
                let (text, count) = (text.cast(), &raw mut count);
                eliza_inference_llm_stream_tokenize(handle, text, n, switch, switch, out, count, out_error);
                eliza_inference_free_tokens(ids);
            }
            47 => {
                let list = tokens(input);
                let mut text = vec![0u8; input.below(600)];
                let ((list, n), room) = (array(input, &list), text.len());
                let text = text.as_mut_ptr().cast();
                eliza_inference_llm_stream_detokenize(handle, list, n, switch, switch, text, room, out_error);
            }
            48 => {
                let (file, key) = (path(input, &mut memory), memory.text(input));
                gone.push(eliza_inference_file_metadata_json(file, key, out_error));
                gone.push(eliza_inference_llm_stream_metadata_json(handle, key, null_mut()));
            }
            49 => {
                gone.push(eliza_inference_llm_stream_model_json(handle, out_error));
                let inputs = memory.text(input);
                gone.push(eliza_inference_llm_stream_chat_prompt_json(handle, inputs, null_mut()));
                // A new answer, or the next piece of the one that was begun, or its end.
                let begins = if input.flag() { inputs } else { null() };
                let piece = input.bytes(60);
                let ((piece, n), last) = (array(input, piece), i32::from(input.flag()));
                let piece = piece.cast();
                gone.push(eliza_inference_llm_stream_chat_parts_json(handle, begins, piece, n, last, null_mut()));
                eliza_inference_llm_stream_is_eog(handle, input.number() as i32);
                gone.push(eliza_inference_llm_stream_token_json(handle, input.below(600) as i32, null_mut()));
            }
            50 => {
                let mut room = vec![0f32; input.pick(&[0, 1, 512, 1024, 5120])];
                let rows = if input.below(4) == 0 { input.number() as i32 } else { input.below(12) as i32 };
                eliza_inference_llm_stream_logits(handle, rows, room.as_mut_ptr(), room.len(), out_error);
            }
            51 => {
                let mut options: EmbeddingOptions = structure(input);
                options.pooling = input.below(7) as i32;
                let options = if input.flag() { null() } else { &raw const options };
                let list = tokens(input);
                let half = list.len() / 2;
                let counts = [half, list.len() - half];
                let ((ids, _), (counts, n)) = (array(input, &list), array(input, &counts));
                let (mut rows, mut n_rows, mut width) = (null_mut(), 0, 0);
                let out = if input.below(16) == 0 { null_mut() } else { &raw mut rows };
                let (n_rows, width, error) = (&raw mut n_rows, &raw mut width, out_error);
                if input.flag() {
                    eliza_inference_llm_stream_embed_tokens(handle, options, ids, counts, n, out, n_rows, width, error);
                } else {
                    eliza_inference_llm_stream_start_embed(handle, options, ids, counts, n, out_error);
                    eliza_inference_llm_stream_take_embeddings(handle, out, n_rows, width, null_mut());
                }
                eliza_inference_free_rows(rows);
            }
            52 => {
                let text = input.bytes(100);
                let half = text.len() / 2;
                let lens = [half, text.len() - half];
                let ((text, n_text), (lens, n)) = (array(input, text), array(input, &lens));
                let (text, mut scores) = (text.cast(), [0f32; 2]);
                let (mut rows, mut n_rows, mut width) = (null_mut(), 0, 0);
                let (out, n_rows, width) = (&raw mut rows, &raw mut n_rows, &raw mut width);
                eliza_inference_llm_stream_embed(handle, null(), text, lens, n, out, n_rows, width, null_mut());
                eliza_inference_free_rows(rows);
                let scores = scores.as_mut_ptr();
                eliza_inference_llm_stream_rank(handle, text, n_text, text, lens, n, scores, null_mut());
                let (mut ids, mut count) = (null_mut(), 0);
                let (out, count) = (&raw mut ids, &raw mut count);
                eliza_inference_llm_stream_tokenize_pair(handle, text, n_text, text, n_text, out, count, out_error);
                eliza_inference_free_tokens(ids);
            }
            53 => {
                let list = tokens(input);
                let (list, n) = array(input, &list);
                eliza_inference_llm_stream_prewarm(handle, list, n, slot, out_error);
            }
            61 if open.len() < 4 => {
                let opened = eliza_inference_llm_stream_open_slot(handle, slot, out_error);
                open.extend((!opened.is_null()).then_some(opened));
            }
            54 => drop(eliza_inference_llm_stream_pin_slot(handle, slot, switch, out_error)),
            55 => drop(eliza_inference_llm_stream_persist(handle, slot, memory.text(input), out_error)),
            56 => {
                eliza_inference_llm_stream_resume(handle, slot, memory.text(input), out_error);
                eliza_inference_llm_stream_forget(handle, memory.text(input), null_mut());
            }
            _ => drop(eliza_inference_set_log_sink(if input.flag() { Some(on_log) } else { None }, null_mut())),
        }
        for text in gone.into_iter().chain([memory.error]).filter(|text| !text.is_null()) {
            let shown = CStr::from_ptr(text).to_str().unwrap();
            assert!(!shown.contains("Internal fault"), "{shown}");
            eliza_inference_free_string(text);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let vocab_only = input.below(4) == 0;
    let mut options: OpenOptions = structure(&mut Input(&[]));
    options.struct_size = size_of::<OpenOptions>() as u32;
    options.model_path = PLACE.model.as_ptr();
    (options.context_size_tokens, options.num_threads) = (64, 1);
    options.slots = 2;
    options.flags = u32::from(vocab_only) * ELIZA_OPEN_VOCAB_ONLY;
    options.flags |= u32::from(input.below(2) == 0) * ELIZA_OPEN_CONCURRENT_SLOTS;
    // SAFETY: whole options with a terminated path.
    let mut open = vec![unsafe { eliza_inference_llm_stream_open_ex(&raw const options, null_mut()) }];
    assert!(!open[0].is_null());
    let mut samplers = Vec::new();
    for _ in 0..40 {
        if input.0.is_empty() {
            break;
        }
        call(&mut input, &mut open, &mut samplers);
    }
    for handle in open {
        // SAFETY: any handle.
        unsafe { eliza_inference_llm_stream_close(handle) };
    }
    for sampler in samplers {
        // SAFETY: made above and not freed.
        unsafe { eliza_inference_sampler_free(sampler) };
    }
});
