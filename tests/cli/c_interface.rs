//! The JSON of the C interface is that of the command line.

use crate::program::{PLAN, json, run, stdout, text};
use crate::testing::fixture;
use crate::testing::fixtures::{Kind, Weights};
use serde_json::Value;

/// JSON that a function of the C interface gave.
fn given(text: *mut std::ffi::c_char) -> Value {
    assert!(!text.is_null(), "{:?}", elizainference::ffi::eliza_inference_take_last_error());
    // SAFETY: a terminated string of the library, freed once.
    unsafe {
        let value = serde_json::from_slice(std::ffi::CStr::from_ptr(text).to_bytes()).unwrap();
        elizainference::ffi::eliza_inference_free_string(text);
        value
    }
}

/// What is free changes between two questions.
fn without_free(mut devices: Value) -> Value {
    devices.as_array_mut().unwrap().iter_mut().for_each(|device| drop(device["available_bytes"].take()));
    devices
}

#[test]
fn the_c_interface_gives_the_command_line_s_answers() {
    use elizainference::ffi::*;
    use std::ffi::CString;
    use std::ptr::null_mut;
    let path = fixture(Kind::Qwen3, Weights::Q4_K);
    let c_path = CString::new(text(&path)).unwrap();
    // SAFETY: plain numbers and pointers, for which zeroes are the defaults; the strings outlive the calls.
    let mut options: OpenOptions = unsafe { std::mem::zeroed() };
    options.struct_size = size_of::<OpenOptions>() as u32;
    options.model_path = c_path.as_ptr();
    (options.context_size_tokens, options.num_threads, options.slots) = (64, 1, 1);
    options.kv_type = c"f32".as_ptr();
    options.draft = options.model_path;

    let how = ["-m", text(&path), "--draft", text(&path), "--threads", "1", "--kv-type", "f32", "--ctx", "64"];
    let mut plan = json(&[&PLAN[..], &how].concat());
    // SAFETY: as above; no out_error.
    let mut planned = unsafe { given(eliza_inference_plan_json(&options, null_mut())) };
    for plan in [&mut plan, &mut planned] {
        plan["devices"] = without_free(plan["devices"].take());
    }
    assert_eq!(planned, plan);
    // SAFETY: no out_error.
    let devices = unsafe { given(eliza_inference_devices_json(null_mut())) };
    assert_eq!(without_free(devices), without_free(json(&["devices", "--json"])));

    // SAFETY: terminated strings, or null.
    let metadata = |key: *const std::ffi::c_char| unsafe {
        given(eliza_inference_file_metadata_json(c_path.as_ptr(), key, null_mut()))
    };
    let (found, all) = (json(&["inspect", text(&path), "--json", "--keys"]), metadata(std::ptr::null()));
    let keys = found["keys"].as_object().unwrap();
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), keys.keys().collect::<Vec<_>>());
    for (key, told) in keys {
        let whole = metadata(CString::new(key.as_str()).unwrap().as_ptr());
        match told["type"].as_str().unwrap() {
            "Array" => {
                let (elements, first) = (whole.as_array().unwrap(), told["first"].as_array().unwrap());
                assert_eq!(elements.len() as u64, told["len"].as_u64().unwrap(), "{key}");
                assert_eq!(elements[..first.len()], first[..], "{key}");
                let short = serde_json::json!({"type": told["element"], "length": elements.len()});
                assert_eq!(all[key], if elements.len() > 16 { short } else { whole }, "{key}");
            }
            _ => assert_eq!((&whole, &all[key]), (&told["value"], &told["value"]), "{key}"),
        }
    }

    // SAFETY: as above; the handle is open until it is closed.
    unsafe {
        let handle = eliza_inference_llm_stream_open_ex(&options, null_mut());
        assert!(!handle.is_null());
        let model = given(eliza_inference_llm_stream_model_json(handle, null_mut()));
        let sizes = &found["sizes"];
        for (one, other) in [
            ("n_embd", "embedding"),
            ("n_layer", "layers"),
            ("n_head", "heads"),
            ("n_head_kv", "kv_heads"),
            ("n_ff", "feed_forward"),
            ("train_context", "context"),
        ] {
            assert_eq!(model[one], sizes[other], "{one}");
        }
        for same in ["architecture", "name", "parameters", "bytes", "path"] {
            assert_eq!(model[same], found[same], "{same}");
        }
        assert_eq!(
            (&model["n_vocab"], &model["vocabulary"]),
            (&found["vocabulary"]["tokens"], &found["vocabulary"]["model"])
        );
        for token in [0, 5, 300, 511] {
            let told = given(eliza_inference_llm_stream_token_json(handle, token, null_mut()));
            let spelled = run(&["detokenize", "-m", text(&path), &token.to_string()]).stdout;
            let bytes: Vec<u8> = told["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
            assert_eq!(spelled.strip_suffix(b"\n").unwrap_or(&spelled), bytes, "{told}");
        }

        let prompt = [2, 10, 20, 30, 40];
        assert_eq!(eliza_inference_llm_stream_prefill(handle, prompt.as_ptr(), 5, -1), 5);
        let mut rows = vec![0f32; 5 * 512];
        let n = eliza_inference_llm_stream_logits(handle, 5, rows.as_mut_ptr(), rows.len(), null_mut());
        assert_eq!(n as usize, rows.len());
        eliza_inference_llm_stream_close(handle);
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("rows");
        let (model, out_path, tokens) = (text(&path), text(&out), "2,10,20,30,40");
        let options = ["--threads", "1", "--kv-type", "f32", "--all"];
        stdout(&[&["logits", "-m", model, "--prompt-tokens", tokens, "--out", out_path], &options[..]].concat());
        let bytes: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(std::fs::read(&out).unwrap() == bytes, "logits");
    }
}
