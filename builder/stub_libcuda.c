/* A libcuda.so.1 for machines without a driver: enough for XLA and cuDNN to compile, nothing that runs.
 *
 * cuDNN links to the driver and asks it to load its kernels while it builds an execution plan; a library that
 * answers "loaded" with a dummy handle satisfies it. Everything that would need a device says that there is none. */

#define NO_DEVICE 100 /* CUDA_ERROR_NO_DEVICE */
#define ABSENT(name) \
    int name(void) { return NO_DEVICE; }
/* The handle goes to the first argument. */
#define LOADED(name) \
    int name(void **handle) { *handle = &dummy; return 0; }
#define DONE(name) \
    int name(void) { return 0; }

static int dummy;

ABSENT(cuCtxGetCurrent)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxPopCurrent)
ABSENT(cuCtxPushCurrent)
ABSENT(cuDeviceGet)
ABSENT(cuDeviceGetCount)
ABSENT(cuGetErrorName)
ABSENT(cuGetErrorString)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchKernelEx)
ABSENT(cuLinkAddData)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate)
ABSENT(cuLinkDestroy)
ABSENT(cuModuleGetFunction)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleUnload)
ABSENT(cuOccupancyMaxPotentialClusterSize)
ABSENT(cuStreamGetCtx)
ABSENT(cuTensorMapEncodeIm2col)
ABSENT(cuTensorMapEncodeTiled)

LOADED(cuLibraryLoadData)
LOADED(cuLibraryLoadFromFile)
LOADED(cuLibraryGetKernel)
LOADED(cuKernelGetFunction)

DONE(cuLibraryUnload)
DONE(cuKernelGetAttribute)
DONE(cuKernelSetAttribute)

int cuDriverGetVersion(int *version) {
    *version = 13000; /* the newest CUDA that the toolkit may be of */
    return 0;
}
