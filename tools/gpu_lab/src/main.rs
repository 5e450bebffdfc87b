//! Compiles compute shaders in WGSL with the compiler of a Vulkan driver and prints what the driver says of the
//! programs it made (`VK_KHR_pipeline_executable_properties`). Nothing is submitted, so a driver without its hardware
//! does.
//!
//!     gpu-lab [--assembly FOLDER] FILE.wgsl...
//!
//! A line for each program: file, name, size of a subgroup, then `statistic=value`, all separated by tabs. A file that
//! is refused is named on standard error, and the exit status is 1 at the end.

use ash::{Device, Entry, Instance, khr, vk};
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::error::Error;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A shader as wgpu hands it to a driver where runtime checks are off.
struct Shader {
    words: Vec<u32>,
    bindings: Vec<(u32, vk::DescriptorType)>,
}

impl Shader {
    fn new(text: &str) -> Result<Shader> {
        let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
        let features = Capabilities::SUBGROUP
            | Capabilities::SHADER_FLOAT16
            | Capabilities::SHADER_FLOAT16_IN_FLOAT32
            | Capabilities::COOPERATIVE_MATRIX;
        let info = Validator::new(ValidationFlags::all(), features)
            .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
            .subgroup_operations(naga::valid::SubgroupOperationSet::all())
            .validate(&module)
            .map_err(|error| error.emit_to_string(text))?;
        let unchecked = BoundsCheckPolicy::Unchecked;
        let options = spv::Options {
            lang_version: (1, 6),
            flags: spv::WriterFlags::empty(),
            capabilities: None,
            bounds_check_policies: BoundsCheckPolicies {
                index: unchecked,
                buffer: unchecked,
                image_load: unchecked,
                binding_array: unchecked,
            },
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            force_loop_bounding: false,
            emit_int_div_checks: false,
            fake_missing_bindings: true,
            ..Default::default()
        };
        let entry = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: "main".into() };
        let words = spv::write_vec(&module, &info, &options, Some(&entry))?;
        let kind = |space| match space {
            naga::AddressSpace::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
            _ => vk::DescriptorType::STORAGE_BUFFER,
        };
        let globals = module.global_variables.iter();
        let bindings = globals.filter_map(|(_, global)| Some((global.binding?.binding, kind(global.space)))).collect();
        Ok(Shader { words, bindings })
    }
}

/// The first device of the first driver.
struct Driver {
    device: Device,
    programs: khr::pipeline_executable_properties::Device,
    _instance: Instance,
    _entry: Entry,
}

fn text_of(chars: &[c_char]) -> String {
    chars.iter().take_while(|&&c| c != 0).map(|&c| char::from(c as u8)).collect()
}

impl Driver {
    fn open() -> Result<Driver> {
        // SAFETY: Vulkan's library is the system's loader; every structure outlives the call that it is passed to.
        unsafe {
            let entry = Entry::load()?;
            let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let instance = entry.create_instance(&vk::InstanceCreateInfo::default().application_info(&app), None)?;
            let physical = *instance.enumerate_physical_devices()?.first().ok_or("the driver has no device")?;
            let offered = instance.enumerate_device_extension_properties(physical)?;
            let has =
                |name: &CStr| offered.iter().any(|have| text_of(&have.extension_name).as_bytes() == name.to_bytes());
            if !has(khr::pipeline_executable_properties::NAME) {
                return Err("the driver says nothing of its programs".into());
            }
            // Everything that the driver offers of what a shader may ask for.
            let mut names = vec![khr::pipeline_executable_properties::NAME.as_ptr()];
            let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
            let mut statistics = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default();
            let (mut v11, mut v12, mut v13) = Default::default();
            let mut features = vk::PhysicalDeviceFeatures2::default()
                .push_next::<vk::PhysicalDeviceVulkan11Features<'_>>(&mut v11)
                .push_next::<vk::PhysicalDeviceVulkan12Features<'_>>(&mut v12)
                .push_next(&mut statistics);
            if instance.get_physical_device_properties(physical).api_version >= vk::API_VERSION_1_3 {
                features = features.push_next::<vk::PhysicalDeviceVulkan13Features<'_>>(&mut v13);
            }
            if has(khr::cooperative_matrix::NAME) {
                names.push(khr::cooperative_matrix::NAME.as_ptr());
                features = features.push_next(&mut matrices);
            }
            instance.get_physical_device_features2(physical, &mut features);
            let queue = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
            let create = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queue)
                .enabled_extension_names(&names)
                .push_next(&mut features);
            let device = instance.create_device(physical, &create, None)?;
            let programs = khr::pipeline_executable_properties::Device::new(&instance, &device);
            Ok(Driver { device, programs, _instance: instance, _entry: entry })
        }
    }

    /// A line for each program that the driver makes of a shader.
    fn compile(&self, file: &Path, shader: &Shader, assembly: Option<&Path>) -> Result<Vec<String>> {
        let device = &self.device;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let bindings: Vec<_> = shader
            .bindings
            .iter()
            .map(|&(binding, kind)| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(kind)
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let mut flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR;
        if assembly.is_some() {
            flags |= vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
        }
        let mut lines = Vec::new();
        // SAFETY: naga made and validated the module; structures outlive the calls that they are passed to, and what is
        // made is used before the process ends, which frees it.
        unsafe {
            let set = device.create_descriptor_set_layout(
                &vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings),
                None,
            )?;
            let layout =
                device.create_pipeline_layout(&vk::PipelineLayoutCreateInfo::default().set_layouts(&[set]), None)?;
            let module =
                device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(&shader.words), None)?;
            // As wgpu does where the device has subgroups.
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
                .module(module)
                .name(c"main");
            let create = [vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout)];
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &create, None);
            let pipeline = made.map_err(|(_, error)| error)?[0];
            let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
            for (i, program) in self.programs.get_pipeline_executable_properties(&info)?.iter().enumerate() {
                let which = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(i as u32);
                let mut line = format!("{stem}\t{}\t{}", text_of(&program.name), program.subgroup_size);
                for statistic in self.programs.get_pipeline_executable_statistics(&which)? {
                    use vk::PipelineExecutableStatisticFormatKHR as Format;
                    let value = match statistic.format {
                        Format::BOOL32 => u64::from(statistic.value.b32 != 0) as f64,
                        Format::INT64 => statistic.value.i64 as f64,
                        Format::UINT64 => statistic.value.u64 as f64,
                        Format::FLOAT64 => statistic.value.f64,
                        other => return Err(format!("a statistic of format {}", other.as_raw()).into()),
                    };
                    line += &format!("\t{}={value}", text_of(&statistic.name));
                }
                lines.push(line);
                if let Some(folder) = assembly {
                    for (name, text) in self.texts(&which)? {
                        std::fs::write(folder.join(format!("{stem}.{}.txt", name.replace([' ', '/'], "_"))), text)?;
                    }
                }
            }
        }
        Ok(lines)
    }

    /// The texts between shader and program that the driver gives out, by name.
    ///
    /// # Safety
    /// The pipeline of `which` is alive and was made with its texts captured.
    unsafe fn texts(&self, which: &vk::PipelineExecutableInfoKHR<'_>) -> Result<Vec<(String, Vec<u8>)>> {
        // SAFETY: as the caller promises; each buffer has the size that the first call asked for.
        unsafe {
            let mut all = self.programs.get_pipeline_executable_internal_representations(which)?;
            let mut buffers: Vec<Vec<u8>> = all.iter().map(|text| vec![0; text.data_size]).collect();
            all.iter_mut().zip(&mut buffers).for_each(|(text, buffer)| text.p_data = buffer.as_mut_ptr().cast());
            let mut count = all.len() as u32;
            let ask = self.programs.fp().get_pipeline_executable_internal_representations_khr;
            ask(self.device.handle(), which, &mut count, all.as_mut_ptr()).result()?;
            Ok(all.iter().map(|text| text_of(&text.name)).zip(buffers).collect())
        }
    }
}

fn run() -> Result<bool> {
    let (mut files, mut assembly) = (Vec::new(), None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--assembly" => assembly = Some(PathBuf::from(arguments.next().ok_or("--assembly needs a folder")?)),
            _ => files.push(PathBuf::from(argument)),
        }
    }
    if let Some(folder) = &assembly {
        std::fs::create_dir_all(folder)?;
    }
    let driver = Driver::open()?;
    let mut refused = false;
    for file in &files {
        // Some drivers print more on standard error, where the name tells what it belongs to.
        eprintln!("file {}", file.display());
        let compile = |text: String| driver.compile(file, &Shader::new(&text)?, assembly.as_deref());
        match std::fs::read_to_string(file).map_err(Into::into).and_then(compile) {
            Ok(lines) => lines.iter().for_each(|line| println!("{line}")),
            Err(error) => {
                refused = true;
                eprintln!("refused {}: {error}", file.display());
            }
        }
    }
    Ok(refused)
}

fn main() -> ExitCode {
    match run() {
        Ok(refused) => ExitCode::from(u8::from(refused)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
