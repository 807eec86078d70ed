// The text of the Error that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "harness/base/error.h"

namespace eb::test {

// Fails the test where `call` throws no Error, or one with another exit code than `exit`.
template <typename Call>
std::string error_of(Exit exit, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), exit) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace eb::test
