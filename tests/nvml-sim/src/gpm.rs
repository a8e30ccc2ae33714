//! Activity counters (GPM): Hopper and later, by two samples.

use nvml_wrapper_sys::bindings::{nvmlGpmMetricsGet_t, nvmlGpmSupport_t};
use sim_machine::catalog::Generation;
use sim_machine::shared::now_ns;

use crate::fault::begin;
use crate::handle::{Device, Gpu, ask_gpu};
use crate::{Answer, code, store};

/// Samples closer than this give no number, as seen on an H200.
const LEAST_SPAN_NS: u64 = 50_000_000;
/// The metric for the graphics engine's activity, in percent.
const GRAPHICS_UTIL: u32 = 1;

/// Two readings of one counter make a metric.
#[derive(Debug, Default)]
pub struct Sample {
    at_ns: u64,
    busy_ns: f64,
    /// The GPU and instance it was read from; absent before it was.
    source: Option<(usize, Option<u32>)>,
}

fn supported(gpu: Gpu<'_>) -> Answer<()> {
    if gpu.model().arch == Generation::Ampere { Err(code::NOT_SUPPORTED) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmQueryDeviceSupport(device: Device, into: Option<&mut nvmlGpmSupport_t>) -> u32 {
    begin!("nvmlGpmQueryDeviceSupport");
    let Some(into) = into else { return code::INVALID_ARGUMENT };
    let answer = ask_gpu(device, code::INVALID_ARGUMENT, |gpu| Ok(u32::from(supported(gpu).is_ok())));
    store(Some(&mut into.isSupportedDevice), answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmQueryIfStreamingEnabled(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlGpmQueryIfStreamingEnabled");
    store(into, ask_gpu(device, code::INVALID_ARGUMENT, |gpu| supported(gpu).map(|()| 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleAlloc(sample: Option<&mut *mut Sample>) -> u32 {
    begin!("nvmlGpmSampleAlloc");
    store(sample, Ok(Box::into_raw(Box::default())))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleFree(sample: Option<Box<Sample>>) -> u32 {
    begin!("nvmlGpmSampleFree");
    if sample.is_some() { code::SUCCESS } else { code::INVALID_ARGUMENT }
}

fn read(device: Device, instance: Option<u32>, sample: Option<&mut Sample>) -> u32 {
    let answer = ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
        supported(gpu)?;
        let at_ns = now_ns();
        let busy_ns = gpu.state.busy_ns(gpu.description, instance, at_ns).ok_or(code::INVALID_ARGUMENT)?;
        Ok(Sample { at_ns, busy_ns, source: Some((gpu.index, instance)) })
    });
    store(sample, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleGet(device: Device, sample: Option<&mut Sample>) -> u32 {
    begin!("nvmlGpmSampleGet");
    read(device, None, sample)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMigSampleGet(device: Device, instance: u32, sample: Option<&mut Sample>) -> u32 {
    begin!("nvmlGpmMigSampleGet");
    read(device, Some(instance), sample)
}

/// The activity between two samples in percent.
fn activity(earlier: &Sample, later: &Sample) -> Answer<f64> {
    if earlier.source.is_none() || earlier.source != later.source {
        return Err(code::INVALID_ARGUMENT);
    }
    let span = later.at_ns.checked_sub(earlier.at_ns).ok_or(code::INVALID_ARGUMENT)?;
    #[expect(clippy::cast_precision_loss, reason = "spans of seconds")]
    let percent = (later.busy_ns - earlier.busy_ns) / span as f64 * 100.0;
    Ok(if span < LEAST_SPAN_NS { f64::NAN } else { percent })
}

/// # Safety
/// The samples in the request are null or of [`nvmlGpmSampleAlloc`] and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpmMetricsGet(request: Option<&mut nvmlGpmMetricsGet_t>) -> u32 {
    begin!("nvmlGpmMetricsGet");
    let Some(request) = request else { return code::INVALID_ARGUMENT };
    if request.version != 1 {
        return code::ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: null or a living sample, by the caller's promise.
    let samples = unsafe { (request.sample1.cast::<Sample>().as_ref(), request.sample2.cast::<Sample>().as_ref()) };
    let (Some(earlier), Some(later)) = samples else { return code::INVALID_ARGUMENT };
    // Only as many entries as are asked for: a caller may have no more.
    for metric in request.metrics.iter_mut().take(request.numMetrics as usize) {
        let answer = if metric.metricId == GRAPHICS_UTIL { activity(earlier, later) } else { Err(code::NO_DATA) };
        metric.nvmlReturn = store(Some(&mut metric.value), answer);
        metric.metricInfo.shortName = c"Graphics Util".as_ptr().cast_mut();
        metric.metricInfo.longName = c"Graphics engine utilization".as_ptr().cast_mut();
        metric.metricInfo.unit = c"%".as_ptr().cast_mut();
    }
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: usize) -> u32 {
    begin!("nvmlEventSetFree");
    code::NOT_SUPPORTED
}
