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
func (r Result) Name() string {
	switch r {
	case ResultSuccess:
		return "CUDA_SUCCESS"
	case ResultInvalidValue:
		return "CUDA_ERROR_INVALID_VALUE"
	case ResultOutOfMemory:
		return "CUDA_ERROR_OUT_OF_MEMORY"
	case ResultNotInitialized:
		return "CUDA_ERROR_NOT_INITIALIZED"
	case 4:
		return "CUDA_ERROR_DEINITIALIZED"
	case 34:
		return "CUDA_ERROR_STUB_LIBRARY"
	case 46:
		return "CUDA_ERROR_DEVICE_UNAVAILABLE"
	case ResultNoDevice:
		return "CUDA_ERROR_NO_DEVICE"
	case 101:
		return "CUDA_ERROR_INVALID_DEVICE"
	case ResultInvalidContext:
		return "CUDA_ERROR_INVALID_CONTEXT"
	case ResultOperatingSystem:
		return "CUDA_ERROR_OPERATING_SYSTEM"
	case ResultIllegalState:
		return "CUDA_ERROR_ILLEGAL_STATE"
	case ResultNotFound:
		return "CUDA_ERROR_NOT_FOUND"
	case ResultNotReady:
		return "CUDA_ERROR_NOT_READY"
	case ResultNotPermitted:
		return "CUDA_ERROR_NOT_PERMITTED"
	case ResultNotSupported:
		return "CUDA_ERROR_NOT_SUPPORTED"
	case 802:
		return "CUDA_ERROR_SYSTEM_NOT_READY"
	case 803:
		return "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
	case 804:
		return "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"
	case ResultUnknown:
		return "CUDA_ERROR_UNKNOWN"
	}
	return ""
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
