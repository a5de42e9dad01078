// Joins a job where nobody listens: the whole library is linked and answers with a Status.
#include <chrono>
#include <cstdio>

#include "worker/worker.h"

int main() {
  float values[2] = {1, 2};
  float gradient[2] = {0, 0};
  everstep::ArrayModel model({{{.name = "w", .shape = {2}}, values, gradient}});
  auto worker =
      everstep::Worker::Join({.servers = {"tcp://127.0.0.1:1"}, .timeout = std::chrono::milliseconds(200)}, model);
  std::printf("%s\n", worker.status().ToString().c_str());
  const everstep::Code code = worker.status().code();
  return code == everstep::Code::kUnavailable || code == everstep::Code::kDeadlineExceeded ? 0 : 1;
}
