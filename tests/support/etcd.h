// A real etcd of a test's own: Debian's, on free ports of loopback, in a folder that is gone with the object.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/process.h"
#include "discovery/etcd_client.h"
#include "tests/support/temp_dir.h"

namespace everstep::test {

class Etcd {
 public:
  // Runs the `etcd` of EVERSTEP_ETCD, of the build's tools (`./dev test` puts it there), or of PATH, and waits until
  // it answers. kNotFound when there is none.
  static Result<std::unique_ptr<Etcd>> Start();

  const std::string& url() const { return url_; }
  std::unique_ptr<EtcdClient> Client() const { return EtcdClient::Make(url_, std::chrono::seconds(1)).value(); }
  void Freeze();  // returns when it stands still
  void Thaw() { (void)process_->Signal(SIGCONT); }
  void Kill() { process_->Kill(); }
  // With what it had stored, on the same port.
  Status Restart();

 private:
  Status Launch();

  TempDir folder_;
  std::string program_;
  std::string url_;
  std::string peer_url_;
  std::optional<Process> process_;
};

}  // namespace everstep::test
