package cudackpt

import "fmt"

// Result is a CUresult, the status that every driver call returns. It is an error, so that
// errors.Is(err, cudackpt.ResultNotReady) works on any error of this package.
type Result uint32

// The results that the checkpoint calls are known to return. What each means depends on the
// call: see [Error].
const (
	ResultSuccess         Result = 0
	ResultInvalidValue    Result = 1
	ResultOutOfMemory     Result = 2
	ResultNotInitialized  Result = 3 // the target has no CUDA
	ResultNoDevice        Result = 100
	ResultInvalidContext  Result = 201
	ResultOperatingSystem Result = 304 // the target does not exist, or died
	ResultIllegalState    Result = 401 // the call is not legal from the target's state
	ResultNotFound        Result = 500
	ResultNotReady        Result = 600 // GPU work was still in flight when the lock timed out
	ResultNotPermitted    Result = 800
	ResultNotSupported    Result = 801
	ResultUnknown         Result = 999
)

// Name returns the name that cuda.h gives the result, or "" if this package does not know it.
func (r Result) Name() string { return resultNames[r] }

var resultNames = map[Result]string{
	ResultSuccess:         "CUDA_SUCCESS",
	ResultInvalidValue:    "CUDA_ERROR_INVALID_VALUE",
	ResultOutOfMemory:     "CUDA_ERROR_OUT_OF_MEMORY",
	ResultNotInitialized:  "CUDA_ERROR_NOT_INITIALIZED",
	4:                     "CUDA_ERROR_DEINITIALIZED",
	34:                    "CUDA_ERROR_STUB_LIBRARY",
	46:                    "CUDA_ERROR_DEVICE_UNAVAILABLE",
	ResultNoDevice:        "CUDA_ERROR_NO_DEVICE",
	101:                   "CUDA_ERROR_INVALID_DEVICE",
	ResultInvalidContext:  "CUDA_ERROR_INVALID_CONTEXT",
	ResultOperatingSystem: "CUDA_ERROR_OPERATING_SYSTEM",
	ResultIllegalState:    "CUDA_ERROR_ILLEGAL_STATE",
	ResultNotFound:        "CUDA_ERROR_NOT_FOUND",
	ResultNotReady:        "CUDA_ERROR_NOT_READY",
	ResultNotPermitted:    "CUDA_ERROR_NOT_PERMITTED",
	ResultNotSupported:    "CUDA_ERROR_NOT_SUPPORTED",
	802:                   "CUDA_ERROR_SYSTEM_NOT_READY",
	803:                   "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	804:                   "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
	ResultUnknown:         "CUDA_ERROR_UNKNOWN",
}

// String returns name and number, as in "CUDA_ERROR_NOT_READY (600)".
func (r Result) String() string {
	if name := r.Name(); name != "" {
		return fmt.Sprintf("%s (%d)", name, uint32(r))
	}
	return fmt.Sprintf("CUresult %d", uint32(r))
}

// Error returns what String returns.
func (r Result) Error() string { return r.String() }
