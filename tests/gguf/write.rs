//! What the writer writes, the reader and the Python package `gguf` read back.

use elizainference::gguf::{File, Value, ValueType, WriteValue, Writer};
use elizainference::quant::TensorType;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// A value with the text that both sides are brought to for comparison.
fn any_value() -> impl Strategy<Value = WriteValue> {
    use proptest::collection::vec;
    fn pair<T: std::fmt::Debug + 'static>(
        one: impl Strategy<Value = T> + Clone + 'static,
    ) -> impl Strategy<Value = WriteValue>
    where
        WriteValue: From<T> + From<Vec<T>>,
    {
        prop_oneof![one.clone().prop_map(WriteValue::from), vec(one, 0..20).prop_map(WriteValue::from)]
    }
    prop_oneof![
        pair(any::<u8>()),
        pair(any::<i8>()),
        pair(any::<u16>()),
        pair(any::<i16>()),
        pair(any::<u32>()),
        pair(any::<i32>()),
        pair(any::<u64>()),
        pair(any::<i64>()),
        pair(any::<bool>()),
        pair(any::<f32>().prop_filter("NaN is not equal to itself", |v| !v.is_nan())),
        pair(any::<f64>().prop_filter("NaN is not equal to itself", |v| !v.is_nan())),
        pair(".{0,12}".prop_map(String::from)),
    ]
}

/// The value under `key` as it would have been written.
fn read_back(file: &File, key: &str) -> WriteValue {
    let integers = || file.integers(key).unwrap().unwrap();
    match file.value(key).unwrap() {
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::F32(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.clone().into(),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
        Value::Array(array) => match array.element {
            ValueType::U8 => integers().iter().map(|v| *v as u8).collect::<Vec<_>>().into(),
            ValueType::I8 => integers().iter().map(|v| *v as i8).collect::<Vec<_>>().into(),
            ValueType::U16 => integers().iter().map(|v| *v as u16).collect::<Vec<_>>().into(),
            ValueType::I16 => integers().iter().map(|v| *v as i16).collect::<Vec<_>>().into(),
            ValueType::U32 => integers().iter().map(|v| *v as u32).collect::<Vec<_>>().into(),
            ValueType::I32 => integers().iter().map(|v| *v as i32).collect::<Vec<_>>().into(),
            ValueType::Bool => integers().iter().map(|v| *v != 0).collect::<Vec<_>>().into(),
            ValueType::I64 => integers().into(),
            ValueType::F32 => file.floats(key).unwrap().unwrap().into(),
            ValueType::String => {
                file.strings(key).unwrap().unwrap().into_iter().map(String::from).collect::<Vec<_>>().into()
            }
            // The reader offers these only narrowed: compare what is left.
            ValueType::U64 | ValueType::F64 => narrowed(file.floats(key).unwrap().unwrap(), array.element),
            ValueType::Array => unreachable!(),
        },
    }
}

fn narrowed(values: Vec<f32>, element: ValueType) -> WriteValue {
    WriteValue::Strings(values.iter().map(|v| format!("{element:?} {v}")).collect())
}

fn expected(value: &WriteValue) -> WriteValue {
    match value {
        WriteValue::U64s(v) => narrowed(v.iter().map(|v| *v as f32).collect(), ValueType::U64),
        WriteValue::F64s(v) => narrowed(v.iter().map(|v| *v as f32).collect(), ValueType::F64),
        other => other.clone(),
    }
}

type Tensor = (Vec<u64>, TensorType, Vec<u8>);

fn any_tensor() -> impl Strategy<Value = Tensor> {
    (proptest::sample::select(TensorType::ALL), 0u64..3, proptest::collection::vec(0u64..4, 0..4), any::<u8>())
        .prop_map(|(ty, blocks, outer, seed)| {
            let mut shape = vec![blocks * ty.block_len() as u64];
            shape.extend(outer);
            let bytes = shape[1..].iter().product::<u64>() * ty.row_bytes(shape[0]).unwrap();
            (shape, ty, (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect())
        })
}

fn names() -> impl Strategy<Value = String> {
    "[a-z.]{1,10}".prop_map(String::from)
}

proptest! {
    #[test]
    fn files_come_back_as_written(
        version in 2u32..=3,
        alignment in proptest::option::of(0u32..9),
        keys in proptest::collection::btree_map(names(), any_value(), 0..12),
        tensors in proptest::collection::btree_map(names(), any_tensor(), 0..8),
    ) {
        let mut w = Writer::new(version);
        if let Some(power) = alignment {
            w.set("general.alignment", 1u32 << power);
        }
        for (key, value) in &keys {
            w.set(key.clone(), value.clone());
        }
        for (name, (shape, ty, data)) in &tensors {
            w.tensor(name.clone(), shape, *ty, data.clone());
        }
        let file = File::from_bytes(w.to_bytes().unwrap()).unwrap();

        prop_assert_eq!(file.version(), version);
        prop_assert_eq!(file.alignment(), alignment.map_or(32, |p| 1 << p));
        prop_assert_eq!(file.metadata().count(), keys.len() + usize::from(alignment.is_some()));
        for (key, value) in &keys {
            prop_assert_eq!(read_back(&file, key), expected(value), "key {}", key);
        }
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for (info, (name, (shape, ty, data))) in file.tensors().iter().zip(&tensors) {
            prop_assert_eq!(&info.name, name);
            prop_assert_eq!(&info.shape[..info.n_dims as usize], &shape[..]);
            prop_assert_eq!(info.tensor_type().unwrap(), *ty);
            prop_assert_eq!(info.offset % file.alignment(), 0);
            prop_assert_eq!(file.read(info).unwrap(), &data[..]);
        }

        // Copied key by key and streamed tensor by tensor it is the same file.
        let mut copy = Writer::new(version);
        for (key, _) in file.metadata() {
            copy.copy_key(&file, key).unwrap();
        }
        for (name, (shape, ty, _)) in &tensors {
            copy.declare(name.clone(), shape, *ty);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.gguf");
        let infos = file.tensors();
        copy.stream(&path, &mut |i, out| { out.write_all(&file.read(&infos[i])?).unwrap(); Ok(()) }).unwrap();
        prop_assert_eq!(std::fs::read(&path).unwrap(), w.to_bytes().unwrap());
        prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn the_python_package_reads_what_we_write() {
    let script = "import sys, gguf, numpy as np\n\
        r = gguf.GGUFReader(sys.argv[1])\n\
        for f in r.fields.values():\n    \
            if not f.name.startswith('GGUF.'): print(f.name, [t.name for t in f.types], f.contents())\n\
        for t in r.tensors: print(t.name, t.tensor_type.name, t.shape.tolist(), np.asarray(t.data).tobytes().hex())";
    let known = Command::new("python3").args(["-c", "import gguf"]).stderr(Stdio::null()).status();
    if !known.is_ok_and(|s| s.success()) {
        eprintln!("skipped: python3 with the package gguf is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("written.gguf");
    for version in [2, 3] {
        let mut w = Writer::new(version);
        w.set("general.architecture", "llama").set("general.alignment", 64u32).set("on", true).set("b", -5i8);
        w.set("x", 0.5f32).set("y", 0.25f64).set("big", u64::MAX).set("list", vec![1i32, -2, 3]);
        w.set("words", vec!["a b".to_string(), "é".into()]).set("flags", vec![true, false]).set("x", 1.5f32);
        w.tensor("one", &[3], TensorType::F32, (0..12).collect());
        w.tensor("two", &[32, 2], TensorType::Q8_0, (0..68).collect());
        w.write_to(&path).unwrap();
        let output = Command::new("python3").args(["-c", script]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let hex = |n: u8| (0..n).map(|b| format!("{b:02x}")).collect::<String>();
        let wanted = [
            "general.architecture ['STRING'] llama".to_string(),
            "general.alignment ['UINT32'] 64".into(),
            "on ['BOOL'] True".into(),
            "b ['INT8'] -5".into(),
            "x ['FLOAT32'] 1.5".into(),
            "y ['FLOAT64'] 0.25".into(),
            "big ['UINT64'] 18446744073709551615".into(),
            "list ['ARRAY', 'INT32'] [1, -2, 3]".into(),
            "words ['ARRAY', 'STRING'] ['a b', 'é']".into(),
            "flags ['ARRAY', 'BOOL'] [True, False]".into(),
            format!("one F32 [3] {}", hex(12)),
            format!("two Q8_0 [32, 2] {}", hex(68)),
        ];
        let found = String::from_utf8(output.stdout).unwrap();
        assert_eq!(found.lines().collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let refused = |w: &Writer, part: &str| {
        let error = w.to_bytes().unwrap_err().to_string();
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    };
    for version in [0, 1, 4] {
        refused(&Writer::new(version), &format!("version {version}"));
    }
    let data = || vec![0; 4];
    refused(Writer::new(3).set("", 1u32), "key is empty");
    refused(Writer::new(3).set("general.alignment", 3u32), "general.alignment");
    refused(Writer::new(3).set("general.alignment", 32u64), "general.alignment");
    refused(Writer::new(3).set("general.alignment", 1u32 << 31), "general.alignment");
    refused(Writer::new(3).tensor("n".repeat(64), &[1], TensorType::F32, data()), "64 bytes");
    refused(Writer::new(3).tensor("t", &[1; 5], TensorType::F32, data()), "5 dimensions");
    refused(Writer::new(3).tensor("t", &[2], TensorType::F32, data()), "has 4 bytes, not 8");
    refused(Writer::new(3).tensor("t", &[4], TensorType::Q4_0, data()), "shape [4]");
    refused(Writer::new(3).tensor("t", &[1 << 40, 1 << 40], TensorType::F32, data()), "shape");
    let mut w = Writer::new(3);
    refused(w.tensor("t", &[1], TensorType::F32, data()).tensor("t", &[1], TensorType::F32, data()), "name is taken");
    refused(Writer::new(3).declare("t", &[1], TensorType::F32), "0 bytes were written, not 4");
}

#[test]
fn a_file_that_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "what was there").unwrap();
    let mut w = Writer::new(3);
    w.declare("t", &[1 << 20], TensorType::F32);
    let mut calls = BTreeMap::new();
    let result = w.stream(&path, &mut |i, out| {
        *calls.entry(i).or_insert(0) += 1;
        out.write_all(&[0; 1 << 21]).unwrap();
        Err(elizainference::Error::Cancelled)
    });
    assert_eq!(result, Err(elizainference::Error::Cancelled));
    assert_eq!(calls, BTreeMap::from([(0, 1)]));
    assert_eq!(std::fs::read(&path).unwrap(), b"what was there");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = w.write_to(&folder.path().join("no/such/folder.gguf")).unwrap_err().to_string();
    assert!(error.contains("no/such/folder.gguf"), "{error}");
}
