#include "discovery/registration.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/etcd.h"

namespace everstep::test {
namespace {

constexpr Duration kLife = std::chrono::seconds(1);

class RegistrationTest : public testing::Test {
 protected:
  // Whether the key comes to be there, or gone, soon.
  bool Becomes(bool there) {
    const auto client = etcd_->Client();
    for (const Time deadline = SteadyNow() + std::chrono::seconds(20); SteadyNow() < deadline;) {
      const auto entry = client->Get("/me");
      if (entry.ok() && entry->has_value() == there) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }
  std::unique_ptr<Registration> Register() {
    return std::make_unique<Registration>(etcd_->Client(), "/me", "tcp://here", kLife);
  }

  std::unique_ptr<Etcd> etcd_ = Etcd::Start().value();
};

TEST_F(RegistrationTest, IsThereForAsLongAsTheObjectIs) {
  auto me = Register();
  ASSERT_TRUE(Becomes(true));
  std::this_thread::sleep_for(kLife * 3);
  EXPECT_EQ(etcd_->Client()->Get("/me").value()->value, "tcp://here");
  me.reset();
  EXPECT_FALSE(etcd_->Client()->Get("/me").value());
}

TEST_F(RegistrationTest, OutlivesAnEtcdThatIsSilentLongerThanTheLease) {
  const auto me = Register();
  ASSERT_TRUE(Becomes(true));
  etcd_->Freeze();
  std::this_thread::sleep_for(kLife * 3);
  etcd_->Thaw();
  ASSERT_TRUE(Becomes(true));
  std::this_thread::sleep_for(kLife * 3);
  EXPECT_TRUE(etcd_->Client()->Get("/me").value());
}

TEST_F(RegistrationTest, ComesBackAfterSomebodyTookItAway) {
  const auto me = Register();
  ASSERT_TRUE(Becomes(true));
  ASSERT_TRUE(etcd_->Client()->Delete("/me").ok());
  EXPECT_TRUE(Becomes(true));
  ASSERT_TRUE(etcd_->Client()->Put("/me", "tcp://somebody else").ok());
  std::this_thread::sleep_for(kLife * 2);
  EXPECT_EQ(etcd_->Client()->Get("/me").value()->value, "tcp://here");
}

TEST_F(RegistrationTest, StartsBeforeEtcdDoes) {
  etcd_->Kill();
  const auto me = Register();
  ASSERT_TRUE(etcd_->Restart().ok());
  EXPECT_TRUE(Becomes(true));
}

}  // namespace
}  // namespace everstep::test
