//! Devices and memory plans as JSON, for the command line and the C interface.

use super::{DeviceInfo, EngineOptions, Memory, Need, devices, plan_memory};
use crate::Result;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The devices of this machine, highest score first: name, kind, score, its reason, the shader compiler (DX12), and
/// memory in bytes where it is known.
///
/// # Errors
/// As [`devices`](super::devices).
pub fn devices_json() -> Result<Value> {
    let device = |(device, memory): &(DeviceInfo, Memory)| {
        json!({
            "name": device.name,
            "kind": format!("{:?}", device.kind).to_lowercase(),
            "score": device.score,
            "reason": device.reason,
            "memory_bytes": memory.total,
            "shader_compiler": device.shader_compiler,
            "available_bytes": memory.available,
            "memory_of_host": memory.of_host,
        })
    };
    Ok(devices()?.iter().map(device).collect())
}

/// The memory of each device that opening the model at `path` with these options, and with the draft model at `draft`,
/// would take, from their headers alone.
///
/// # Errors
/// Those of [`plan_memory`].
pub fn plan_json(path: &Path, draft: Option<&Path>, options: &EngineOptions) -> Result<Value> {
    let plan = plan_memory(path, draft, options)?;
    let of_draft = plan.estimate.of_draft;
    let device = |need: &Need| {
        let components: Map<_, _> = need.bytes.iter().map(|(part, bytes)| (part.name().into(), json!(bytes))).collect();
        json!({
            "name": need.device,
            "layers": need.layers.len(),
            "bytes": components,
            "total_bytes": need.bytes.total(),
            "file_backed_bytes": need.file_backed,
            "available_bytes": need.memory.available,
            "memory_of_host": need.memory.of_host,
        })
    };
    Ok(json!({
        "model": path.display().to_string(),
        "context": plan.estimate.context,
        "kv_type": options.kv_type.name(),
        "kv_type_v": options.kv_type_v().name(),
        "parallel": options.parallel()?,
        "concurrent_slots": options.concurrent_slots,
        "n_batch": options.batch()?,
        "n_layer": plan.n_layer,
        "gpu_layers": plan.estimate.gpu_layers,
        "tensor_split": options.tensor_split.to_string(),
        "tensor_devices": options.tensor_devices.iter().zip(&plan.placed).map(|(rule, (tensors, bytes))| {
            json!({ "rule": rule.to_string(), "tensors": tensors, "file_bytes": bytes })
        }).collect::<Vec<_>>(),
        "draft": draft.map(|path| json!({
            "model": path.display().to_string(),
            "total_bytes": of_draft.allocated,
            "file_backed_bytes": of_draft.file_backed,
        })),
        "devices": plan.estimate.needs.iter().map(device).collect::<Vec<_>>(),
        "fits": plan.fits,
        "largest_context": plan.largest_context,
        "largest_gpu_layers": plan.largest_gpu_layers,
    }))
}
