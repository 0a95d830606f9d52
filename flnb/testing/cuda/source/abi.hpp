// Constants of the documented driver API (cuda.h) that the emulated device uses.
#pragma once

constexpr int DEVICES = 2;

enum : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  MISALIGNED_ADDRESS = 716,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
};
enum : unsigned { STREAM_NON_BLOCKING = 1, EVENT_DISABLE_TIMING = 2 };
