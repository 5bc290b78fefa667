// init_training.cpp: the arithmetic of low-communication training, on memory by its address.
// pccl_train checks the arguments; include/pccl.h has the formulas.
#include "common.h"

namespace pccl_binding {

namespace {

template <typename T>
T *at(uintptr_t address) {
  return reinterpret_cast<T *>(address);
}

pccl_sparse_options_t sparse_options(uint32_t chunk, uint32_t kept, int values) {
  pccl_sparse_options_t options = PCCL_SPARSE_OPTIONS_INIT;
  options.chunk = chunk;
  options.kept = kept;
  options.values = static_cast<pccl_sparse_values_t>(values);
  return options;
}

// Makes a call without the GIL, and raises the error of its status.
template <typename Call>
void unlocked(Call call) {
  pccl_status_t status;
  {
    Unlocked guard;
    status = call();
  }
  check(status);
}

void init_outer(nb::module_ &module) {
  module.def(
      "outer_difference",
      [](uintptr_t outer, uintptr_t parameters, int dtype, uint64_t count, uintptr_t out) {
        double sum_of_squares = 0;
        unlocked([&] {
          return pccl_outer_difference(at<const float>(outer), at<const void>(parameters),
                                       static_cast<pccl_dtype_t>(dtype), count, at<float>(out),
                                       &sum_of_squares);
        });
        return sum_of_squares;
      },
      nb::arg("outer"), nb::arg("parameters"), nb::arg("dtype"), nb::arg("count"), nb::arg("out"),
      "The sum of the squares of outer - parameters, which `out` becomes.");
  module.def(
      "outer_mix",
      [](uintptr_t parameters, int dtype, uintptr_t outer, uint64_t count, float alpha) {
        unlocked([&] {
          return pccl_outer_mix(at<void>(parameters), static_cast<pccl_dtype_t>(dtype),
                                at<const float>(outer), count, alpha);
        });
      },
      nb::arg("parameters"), nb::arg("dtype"), nb::arg("outer"), nb::arg("count"),
      nb::arg("alpha"), "parameters := alpha * parameters + (1 - alpha) * outer.");
  module.def(
      "outer_step",
      [](uintptr_t outer, uintptr_t first_moment, uintptr_t second_moment, uintptr_t gradient,
         uint64_t count, int rule, float learning_rate, float momentum, float beta1, float beta2,
         float epsilon, float scale, uint64_t step) {
        pccl_outer_options_t options = PCCL_OUTER_OPTIONS_INIT;
        options.rule = static_cast<pccl_outer_rule_t>(rule);
        options.learning_rate = learning_rate;
        options.momentum = momentum;
        options.beta1 = beta1;
        options.beta2 = beta2;
        options.epsilon = epsilon;
        options.scale = scale;
        options.step = step;
        unlocked([&] {
          return pccl_outer_step(at<float>(outer), at<float>(first_moment),
                                 at<float>(second_moment), at<const float>(gradient), count,
                                 &options);
        });
      },
      nb::arg("outer"), nb::arg("first_moment"), nb::arg("second_moment"), nb::arg("gradient"),
      nb::arg("count"), nb::arg("rule"), nb::arg("learning_rate"), nb::arg("momentum"),
      nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"), nb::arg("scale"), nb::arg("step"),
      "One step of rule 0 (SGD), 1 (Nesterov) or 2 (Adam). 0 stands for a moment it has not.");
}

void init_sparse(nb::module_ &module) {
  module.def(
      "sparse_bytes",
      [](uint32_t chunk, uint32_t kept, int values, uint64_t count) {
        const pccl_sparse_options_t options = sparse_options(chunk, kept, values);
        return pccl_sparse_bytes(&options, count);
      },
      nb::arg("chunk"), nb::arg("kept"), nb::arg("values"), nb::arg("count"),
      "Bytes of a piece of `count` f32; 0 for options that cannot be.");
  module.def(
      "sparse_encode",
      [](uintptr_t input, uint64_t count, uint32_t chunk, uint32_t kept, int values,
         uintptr_t piece) {
        const pccl_sparse_options_t options = sparse_options(chunk, kept, values);
        unlocked([&] {
          return pccl_sparse_encode(at<const float>(input), count, &options, at<void>(piece));
        });
      },
      nb::arg("input"), nb::arg("count"), nb::arg("chunk"), nb::arg("kept"), nb::arg("values"),
      nb::arg("piece"), "piece := the elements of greatest magnitude of each chunk.");
  module.def(
      "sparse_add",
      [](uintptr_t into, uintptr_t weights, uint64_t count, uint32_t chunk, uint32_t kept,
         int values, uintptr_t piece, float scale) {
        const pccl_sparse_options_t options = sparse_options(chunk, kept, values);
        unlocked([&] {
          return pccl_sparse_add(at<float>(into), at<float>(weights), count, &options,
                                 at<const void>(piece), scale);
        });
      },
      nb::arg("into"), nb::arg("weights"), nb::arg("count"), nb::arg("chunk"), nb::arg("kept"),
      nb::arg("values"), nb::arg("piece"), nb::arg("scale"),
      "into += scale * piece, and weights, unless 0, += scale where the piece has an element.");
}

}  // namespace

void init_training(nb::module_ &module) {
  init_outer(module);
  init_sparse(module);
}

}  // namespace pccl_binding
