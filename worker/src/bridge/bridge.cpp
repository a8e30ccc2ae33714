// What tch doesn't offer and a measurement needs. Links only libc10 and libtorch_cpu: calls that concern a device go
// through the hooks that libtorch_cuda registers when it is loaded at run time.
//
// Every function that can fail returns 0, 1 (failed) or 2 (out of memory) and leaves a text for migperf_last_error().

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kOutOfMemory = 2;

thread_local std::string last_error;

template <class Body>
int guarded(Body&& body) {
  try {
    body();
    return kOk;
  } catch (const c10::OutOfMemoryError& error) {
    last_error = error.what_without_backtrace();
    return kOutOfMemory;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
    return kFailed;
  } catch (const std::bad_alloc& error) {
    last_error = error.what();
    return kOutOfMemory;
  } catch (const std::exception& error) {
    last_error = error.what();
    return kFailed;
  } catch (...) {
    last_error = "an exception of unknown type";
    return kFailed;
  }
}

// Autocast for one device type while it lives; what was set before comes back. The cache of cast parameters is emptied
// when the outermost one ends, so each batch casts its parameters once, as a training loop does.
class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType type)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        was_type_(at::autocast::get_autocast_dtype(device)),
        was_cached_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, type);
    at::autocast::set_autocast_cache_enabled(true);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, was_type_);
    at::autocast::set_autocast_cache_enabled(was_cached_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType was_type_;
  bool was_cached_;
};

// The update rule, its state and, for fp16, the dynamic loss scale. Nothing here waits for the device: a step whose
// gradients overflowed is skipped by the device itself.
class Optimiser {
 public:
  struct Rule {
    bool adamw;
    double learning_rate;
    double momentum;  // of SGD
    double beta1, beta2, epsilon;  // of AdamW
    double weight_decay;
  };

  Optimiser(std::vector<at::Tensor> parameters, Rule rule, double initial_scale)
      : rule_(rule), parameters_(std::move(parameters)) {
    c10::NoGradGuard no_grad;
    TORCH_CHECK(!parameters_.empty(), "nothing to optimise");
    auto scalars = parameters_[0].options().dtype(at::kFloat).requires_grad(false);
    for (const auto& parameter : parameters_) {
      first_.push_back(at::zeros_like(parameter));
      if (rule_.adamw) second_.push_back(at::zeros_like(parameter));
    }
    // The fused kernels only read the number of steps, so that all parameters can share one.
    if (rule_.adamw) steps_ = at::zeros({}, scalars);
    if (initial_scale > 0) {
      scale_ = at::full({}, initial_scale, scalars);
      inverse_ = at::empty({}, scalars);
      overflow_ = at::zeros({}, scalars);
      growth_ = at::zeros({}, scalars.dtype(at::kInt));
    }
    auto count = parameters_.size();
    for (auto* list : {&live_, &gradients_, &live_first_, &live_second_, &live_steps_}) list->reserve(count);
  }

  void backward(const at::Tensor& loss) const {
    if (scale_.defined()) {
      (loss * scale_).backward();
    } else {
      loss.backward();
    }
  }

  void step() {
    c10::NoGradGuard no_grad;
    collect();
    if (!gradients_.empty()) {
      std::optional<at::Tensor> overflow;
      if (scale_.defined()) {
        at::reciprocal_out(inverse_, scale_);
        overflow_.zero_();
        at::_amp_foreach_non_finite_check_and_unscale_(gradients_, overflow_, inverse_);
        overflow = overflow_;
      }
      if (rule_.adamw) {
        steps_.add_(1);
        at::_fused_adamw_(live_, gradients_, live_first_, live_second_, {}, live_steps_, rule_.learning_rate,
                          rule_.beta1, rule_.beta2, rule_.weight_decay, rule_.epsilon, /*amsgrad=*/false,
                          /*maximize=*/false, /*grad_scale=*/{}, overflow);
        if (overflow) steps_.sub_(overflow_);
      } else {
        // A buffer of zeros makes the first step the same as the "first step" special case.
        at::_fused_sgd_(live_, gradients_, live_first_, rule_.weight_decay, rule_.momentum, rule_.learning_rate,
                        /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false,
                        /*grad_scale=*/{}, overflow);
      }
      if (overflow) at::_amp_update_scale_(scale_, growth_, overflow_, 2.0, 0.5, 2000);
    }
    forget();
  }

  // The scale that the next loss is multiplied with; 0 where there is none. Waits for the device.
  double scale() const { return scale_.defined() ? scale_.item<double>() : 0.0; }

  // L2 norms of the gradients that backward() left, in the parameters' order, unscaled; 0 where there is none. Waits.
  void gradient_norms(double* norms) const {
    c10::NoGradGuard no_grad;
    double scale = scale_.defined() ? scale_.item<double>() : 1.0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto& gradient = parameters_[i].grad();
      norms[i] = gradient.defined() ? gradient.to(at::kDouble).norm().item<double>() / scale : 0.0;
    }
  }

 private:
  void collect() {
    forget_lists();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      live_.push_back(parameters_[i]);
      gradients_.push_back(gradient);
      live_first_.push_back(first_[i]);
      if (rule_.adamw) {
        live_second_.push_back(second_[i]);
        live_steps_.push_back(steps_);
      }
    }
  }

  void forget_lists() {
    for (auto* list : {&live_, &gradients_, &live_first_, &live_second_, &live_steps_}) list->clear();
  }

  // Gradients are released rather than zeroed: the next backward writes instead of adding.
  void forget() {
    forget_lists();
    for (const auto& parameter : parameters_) parameter.mutable_grad().reset();
  }

  Rule rule_;
  std::vector<at::Tensor> parameters_, first_, second_;
  at::Tensor steps_, scale_, inverse_, overflow_, growth_;
  std::vector<at::Tensor> live_, gradients_, live_first_, live_second_, live_steps_;
};

at::Device device_of(int index) {
  return index < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace

extern "C" {

const char* migperf_last_error() { return last_error.c_str(); }

int migperf_inference_mode_enter(void** guard) {
  return guarded([&] { *guard = new c10::InferenceMode(true); });
}
void migperf_inference_mode_leave(void* guard) { delete static_cast<c10::InferenceMode*>(guard); }

// type: 5 is fp16, 15 is bf16 (c10::ScalarType).
int migperf_autocast_enter(int device, int type, void** guard) {
  return guarded([&] { *guard = new Autocast(device_of(device).type(), static_cast<at::ScalarType>(type)); });
}
void migperf_autocast_leave(void* guard) { delete static_cast<Autocast*>(guard); }

int migperf_channels_last(const at::Tensor* tensor, at::Tensor** result) {
  return guarded([&] { *result = new at::Tensor(tensor->contiguous(at::MemoryFormat::ChannelsLast)); });
}
int migperf_is_channels_last(const at::Tensor* tensor, int* result) {
  return guarded([&] { *result = tensor->is_contiguous(at::MemoryFormat::ChannelsLast) ? 1 : 0; });
}
int migperf_copy_async(const at::Tensor* to, const at::Tensor* from) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    to->copy_(*from, /*non_blocking=*/true);
  });
}

int migperf_numerics(int tf32, int cudnn_benchmark, int deterministic) {
  return guarded([&] {
    auto& context = at::globalContext();
    context.setAllowTF32CuBLAS(tf32 != 0);
    context.setAllowTF32CuDNN(tf32 != 0);
    context.setBenchmarkCuDNN(cudnn_benchmark != 0);
    context.setDeterministicCuDNN(deterministic != 0);
    context.setDeterministicAlgorithms(deterministic != 0, /*warn_only=*/true);
  });
}

int migperf_cuda_devices(int* count) {
  return guarded([&] { *count = at::globalContext().hasCUDA() ? at::accelerator::deviceCount() : 0; });
}
int migperf_synchronise(int device) {
  return guarded([&] { at::accelerator::getCurrentStream(static_cast<c10::DeviceIndex>(device)).synchronize(); });
}
int migperf_empty_cache() {
  return guarded([&] { at::accelerator::emptyCache(); });
}
int migperf_reset_peak(int device) {
  return guarded([&] { at::accelerator::resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}
// allocated, its peak, reserved, its peak: bytes.
int migperf_memory(int device, int64_t* bytes) {
  return guarded([&] {
    auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    constexpr auto kAll = static_cast<size_t>(at::CachingDeviceAllocator::StatType::AGGREGATE);
    bytes[0] = stats.allocated_bytes[kAll].current;
    bytes[1] = stats.allocated_bytes[kAll].peak;
    bytes[2] = stats.reserved_bytes[kAll].current;
    bytes[3] = stats.reserved_bytes[kAll].peak;
  });
}

int migperf_sgd_new(const at::Tensor* const* parameters, size_t count, double learning_rate, double momentum,
                    double weight_decay, double initial_scale, void** optimiser) {
  return guarded([&] {
    std::vector<at::Tensor> list;
    list.reserve(count);
    for (size_t i = 0; i < count; ++i) list.push_back(*parameters[i]);
    Optimiser::Rule rule{false, learning_rate, momentum, 0, 0, 0, weight_decay};
    *optimiser = new Optimiser(std::move(list), rule, initial_scale);
  });
}
int migperf_adamw_new(const at::Tensor* const* parameters, size_t count, double learning_rate, double beta1,
                      double beta2, double epsilon, double weight_decay, double initial_scale, void** optimiser) {
  return guarded([&] {
    std::vector<at::Tensor> list;
    list.reserve(count);
    for (size_t i = 0; i < count; ++i) list.push_back(*parameters[i]);
    Optimiser::Rule rule{true, learning_rate, 0, beta1, beta2, epsilon, weight_decay};
    *optimiser = new Optimiser(std::move(list), rule, initial_scale);
  });
}
void migperf_optimiser_free(void* optimiser) { delete static_cast<Optimiser*>(optimiser); }
int migperf_optimiser_backward(const void* optimiser, const at::Tensor* loss) {
  return guarded([&] { static_cast<const Optimiser*>(optimiser)->backward(*loss); });
}
int migperf_optimiser_step(void* optimiser) {
  return guarded([&] { static_cast<Optimiser*>(optimiser)->step(); });
}
int migperf_optimiser_scale(const void* optimiser, double* scale) {
  return guarded([&] { *scale = static_cast<const Optimiser*>(optimiser)->scale(); });
}
int migperf_optimiser_gradient_norms(const void* optimiser, double* norms) {
  return guarded([&] { static_cast<const Optimiser*>(optimiser)->gradient_norms(norms); });
}

}  // extern "C"
