/* A libnvidia-ml.so.1 without a driver: speaks the ABI that nvidia-ml-py calls, says what a file tells it to say.
 *
 * FAKE_NVML_STATE names the file; it is mapped and shared, so faults are switched while a process runs on it.
 * tests/support/nvml/fake_nvml.py has the same layout in ctypes. Signatures and structures: nvidia-ml-py 13 (pynvml.py).
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_EVENTS 256
#define MAX_PIDS 8
#define MAX_SETS 8
#define MAGIC 0x4d4c564eu

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10
};

/* A time counter: base_ns, and rate nanoseconds more for each nanosecond since since_ns. */
typedef struct { uint64_t base_ns, since_ns; double rate; } Counter;

typedef struct {
    char uuid[96], name[96], serial[32], bus_id[32];
    uint64_t mem_total, mem_used, reasons, ecc_corrected, ecc_uncorrected, pcie_replays;
    uint64_t nvlink_crc, nvlink_replay, nvlink_recovery, supported_events, calls, refused;
    Counter sw_power, sw_therm, hw_therm, hw_brake;
    uint64_t pid_memory[MAX_PIDS];
    uint32_t pids[MAX_PIDS];
    uint32_t processes, util, temp, mem_temp, temp_slowdown, temp_gpu_max, temp_mem_max, power_mw, power_limit_mw;
    uint32_t clock_sm, clock_mem, sram_threshold, remap_cor, remap_unc, remap_pending, remap_failure;
    uint32_t retired_sbe, retired_dbe, retired_pending, pcie_gen, pcie_gen_max, pcie_width, pcie_width_max;
    uint32_t links, links_down, recovery_action, mig_devices, present;
    uint32_t fault;        /* code that every call on this GPU returns; 0: none */
    uint32_t slow_ms;      /* every call on this GPU takes so long */
    char hang[64];         /* call that does not return while it stands here; *: any */
    char unsupported[256]; /* ",nvmlDeviceGetMigMode,field:230," */
} Gpu;

typedef struct { uint64_t gpu, type, data; } Event;

typedef struct {
    uint32_t magic, bytes, gpus, driver_error, driver_generation, waits;
    uint64_t calls, events_written;
    char driver[80], hang[64], unsupported[256];
    Event events[MAX_EVENTS];
    Gpu gpu[MAX_GPUS];
} State;

typedef struct { int used; uint64_t seen; uint64_t mask[MAX_GPUS]; } EventSet;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } Value;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned type, ret;
    Value value;
} FieldValue;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned threshold_exceeded; } SramStatus;

static State *state;
static unsigned generation; /* driver generation that this process was initialised under; 0: not at all */
static EventSet sets[MAX_SETS];
static char mig_handles[MAX_GPUS][8];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap_ms(unsigned ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000L};
    nanosleep(&t, NULL);
}

static State *map_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (mapped == MAP_FAILED) return NULL;
    State *found = mapped;
    if (found->magic != MAGIC || found->bytes != sizeof(State)) {
        fprintf(stderr, "fake_nvml: %s has another layout than this library (%zu bytes)\n", path, sizeof(State));
        abort();
    }
    return found;
}

static int listed(const volatile char *list, const char *name) {
    char copy[256], wanted[72];
    memcpy(copy, (const char *)list, sizeof copy);
    copy[sizeof copy - 1] = 0;
    snprintf(wanted, sizeof wanted, ",%s,", name);
    return strstr(copy, wanted) != NULL;
}

static int hangs(const volatile char *hang, const char *name) {
    return hang[0] && (hang[0] == '*' || strcmp((const char *)hang, name) == 0);
}

/* What every call does first: waits where it is told to hang or to be slow, and returns the fault that is switched on. */
static int enter(const char *name, Gpu *gpu) {
    if (!state) return UNINITIALIZED;
    __atomic_add_fetch(&state->calls, 1, __ATOMIC_RELAXED);
    if (gpu) __atomic_add_fetch(&gpu->calls, 1, __ATOMIC_RELAXED);
    while (hangs(state->hang, name) || (gpu && hangs(gpu->hang, name))) nap_ms(5);
    if (gpu && gpu->slow_ms) nap_ms(gpu->slow_ms);
    if (state->driver_error) return (int)state->driver_error;
    if (generation != state->driver_generation) return UNINITIALIZED;
    if (gpu && gpu->fault) return (int)gpu->fault;
    if (!listed(state->unsupported, name) && !(gpu && listed(gpu->unsupported, name))) return OK;
    if (gpu) __atomic_add_fetch(&gpu->refused, 1, __ATOMIC_RELAXED);
    return NOT_SUPPORTED;
}

#define ENTER_NODE() do { int code_ = enter(__func__, NULL); if (code_) return code_; } while (0)
#define ENTER(gpu) \
    do { \
        if (!(gpu)) return INVALID_ARGUMENT; \
        int code_ = enter(__func__, gpu); \
        if (code_) return code_; \
    } while (0)

static int position(const Gpu *gpu) {
    int at = 0;
    for (unsigned i = 0; i < state->gpus; i++) {
        if (&state->gpu[i] == gpu) return at;
        at += state->gpu[i].present != 0;
    }
    return -1;
}

static int is_mig(const void *handle) {
    return (const char *)handle >= mig_handles[0] && (const char *)handle < mig_handles[MAX_GPUS];
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!state) state = map_state();
    if (!state) return DRIVER_NOT_LOADED;
    __atomic_add_fetch(&state->calls, 1, __ATOMIC_RELAXED);
    while (hangs(state->hang, __func__)) nap_ms(5);
    if (state->driver_error) return (int)state->driver_error;
    if (generation == 0) generation = state->driver_generation; /* a second init attaches to nothing new */
    return OK;
}

int nvmlShutdown(void) {
    generation = 0;
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case 1: return "Uninitialized";
        case 3: return "Not Supported";
        case 4: return "Insufficient Permissions";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        case 16: return "GPU requires reset";
        case 18: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER_NODE();
    snprintf(text, size, "%s", state->driver);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_NODE();
    *count = 0;
    for (unsigned i = 0; i < state->gpus; i++) *count += state->gpu[i].present != 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ENTER_NODE();
    for (unsigned i = 0; i < state->gpus; i++)
        if (state->gpu[i].present && index-- == 0) {
            *handle = &state->gpu[i];
            return enter("nvmlDeviceGetHandleByIndex_v2", &state->gpu[i]);
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index) {
    ENTER(gpu);
    *index = (unsigned)position(gpu);
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    if (is_mig(handle)) {
        long at = (char *)handle - mig_handles[0];
        ENTER(&state->gpu[at / 8]);
        snprintf(text, size, "MIG-%08lx-0000-4000-8000-000000000000", at);
        return OK;
    }
    ENTER(handle);
    snprintf(text, size, "%s", ((Gpu *)handle)->uuid);
    return OK;
}

#define TEXT_CALL(call, field) \
    int call(Gpu *gpu, char *text, unsigned size) { ENTER(gpu); snprintf(text, size, "%s", gpu->field); return OK; }
TEXT_CALL(nvmlDeviceGetName, name)
TEXT_CALL(nvmlDeviceGetSerial, serial)

#define NUMBER_CALL(call, type, field) \
    int call(Gpu *gpu, type *value) { ENTER(gpu); *value = gpu->field; return OK; }
NUMBER_CALL(nvmlDeviceGetPowerUsage, unsigned, power_mw)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit_mw)
NUMBER_CALL(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons)
NUMBER_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, pcie_gen)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, pcie_gen_max)
NUMBER_CALL(nvmlDeviceGetCurrPcieLinkWidth, unsigned, pcie_width)
NUMBER_CALL(nvmlDeviceGetMaxPcieLinkWidth, unsigned, pcie_width_max)
NUMBER_CALL(nvmlDeviceGetSupportedEventTypes, unsigned long long, supported_events)

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *info) {
    ENTER(gpu);
    memset(info, 0, sizeof *info);
    sscanf(gpu->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", gpu->bus_id);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04x:%02x:%02x.0", info->domain & 0xffff,
             info->bus & 0xff, info->device & 0xff);
    return OK;
}

int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *rates) {
    ENTER(gpu);
    rates->gpu = gpu->util;
    rates->memory = gpu->util / 2;
    return OK;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    ENTER(gpu);
    memory->total = gpu->mem_total;
    memory->used = gpu->mem_used;
    memory->free = gpu->mem_total - gpu->mem_used;
    return OK;
}

int nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *value) {
    ENTER(gpu);
    if (sensor) return INVALID_ARGUMENT;
    *value = gpu->temp;
    return OK;
}

int nvmlDeviceGetTemperatureV(Gpu *gpu, Temperature *temperature) {
    ENTER(gpu);
    if (temperature->version != 0x100000C) return INVALID_ARGUMENT;
    temperature->temperature = (int)gpu->temp;
    return OK;
}

int nvmlDeviceGetTemperatureThreshold(Gpu *gpu, unsigned kind, unsigned *value) {
    ENTER(gpu);
    unsigned known[4] = {gpu->temp_slowdown + 3, gpu->temp_slowdown, gpu->temp_mem_max, gpu->temp_gpu_max};
    if (kind > 3) return INVALID_ARGUMENT;
    *value = known[kind];
    return OK;
}

int nvmlDeviceGetClockInfo(Gpu *gpu, unsigned kind, unsigned *value) {
    ENTER(gpu);
    if (kind > 2) return NOT_SUPPORTED;
    *value = kind == 2 ? gpu->clock_mem : gpu->clock_sm;
    return OK;
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    *current = *pending = gpu->mig_devices != 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) {
    ENTER(gpu);
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, void **handle) {
    ENTER(gpu);
    if (index >= gpu->mig_devices) return NOT_FOUND;
    *handle = &mig_handles[gpu - state->gpu][index];
    return OK;
}

int nvmlDeviceGetSramEccErrorStatus(Gpu *gpu, SramStatus *status) {
    ENTER(gpu);
    if (status->version != 0x1000068) return INVALID_ARGUMENT;
    status->threshold_exceeded = gpu->sram_threshold;
    return OK;
}

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active) {
    ENTER(gpu);
    if (link >= gpu->links) return INVALID_ARGUMENT;
    *active = !(gpu->links_down >> link & 1);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, ProcessInfo *infos) {
    ENTER(gpu);
    unsigned room = *count;
    *count = gpu->processes;
    if (gpu->processes == 0) return OK;
    if (room < gpu->processes) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < gpu->processes; i++)
        infos[i] = (ProcessInfo){gpu->pids[i], gpu->pid_memory[i], 0xffffffffu, 0xffffffffu};
    return OK;
}

static uint64_t counted(const Counter *counter) {
    return counter->base_ns + (uint64_t)((double)(now_ns() - counter->since_ns) * counter->rate);
}

static int field_value(const Gpu *gpu, uint32_t field, Value *value) {
    char name[24];
    snprintf(name, sizeof name, "field:%u", field);
    if (listed(gpu->unsupported, name)) return NOT_SUPPORTED;
    switch (field) {
        case 3: value->ull = gpu->ecc_corrected; break;
        case 4: value->ull = gpu->ecc_uncorrected; break;
        case 29: value->ull = gpu->retired_sbe; break;
        case 30: value->ull = gpu->retired_dbe; break;
        case 31: value->ull = gpu->retired_pending; break;
        case 38: value->ull = gpu->nvlink_crc; break;
        case 45: value->ull = 0; break;
        case 52: value->ull = gpu->nvlink_replay; break;
        case 59: value->ull = gpu->nvlink_recovery; break;
        case 74: value->ull = counted(&gpu->sw_power); break;
        case 82: value->ui = gpu->mem_temp; break;
        case 91: value->ui = gpu->links; break;
        case 94: value->ull = gpu->pcie_replays; break;
        case 142: value->ui = gpu->remap_cor; break;
        case 143: value->ui = gpu->remap_unc; break;
        case 144: value->ui = gpu->remap_pending; break;
        case 145: value->ui = gpu->remap_failure; break;
        case 230: value->ui = gpu->recovery_action; break;
        case 269: value->ull = counted(&gpu->sw_therm); break;
        case 270: value->ull = counted(&gpu->hw_therm); break;
        case 271: value->ull = counted(&gpu->hw_brake); break;
        default: return NOT_SUPPORTED;
    }
    return OK;
}

int nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values) {
    ENTER(gpu);
    for (int i = 0; i < count; i++) {
        int narrow = values[i].field == 82 || values[i].field == 91 || (values[i].field >= 142 && values[i].field <= 230);
        values[i].value.ull = 0;
        values[i].type = narrow ? 1 : 3; /* unsigned int, unsigned long long */
        values[i].ret = (unsigned)field_value(gpu, values[i].field, &values[i].value);
        if (values[i].ret) __atomic_add_fetch(&gpu->refused, 1, __ATOMIC_RELAXED);
    }
    return OK;
}

int nvmlEventSetCreate(EventSet **set) {
    ENTER_NODE();
    for (int i = 0; i < MAX_SETS; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            sets[i].seen = __atomic_load_n(&state->events_written, __ATOMIC_ACQUIRE);
            *set = &sets[i];
            return OK;
        }
    return INSUFFICIENT_SIZE;
}

int nvmlEventSetFree(EventSet *set) {
    set->used = 0;
    return OK;
}

int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, EventSet *set) {
    ENTER(gpu);
    if (types & ~gpu->supported_events) return NOT_SUPPORTED;
    set->mask[gpu - state->gpu] |= types;
    return OK;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms) {
    ENTER_NODE();
    uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000u;
    // The driver sleeps until there is news. This looks for it, and a benchmark can make it look less often.
    const char *look = getenv("FAKE_NVML_LOOK_MS");
    unsigned look_ms = look ? (unsigned)atoi(look) : 2;
    __atomic_add_fetch(&state->waits, 1, __ATOMIC_RELAXED);
    for (;;) {
        if (state->driver_error) return (int)state->driver_error;
        while (set->seen < __atomic_load_n(&state->events_written, __ATOMIC_ACQUIRE)) {
            Event event = state->events[set->seen++ % MAX_EVENTS];
            if (event.gpu >= MAX_GPUS || !(set->mask[event.gpu] & event.type)) continue;
            *data = (EventData){&state->gpu[event.gpu], event.type, event.data, 0xffffffffu, 0xffffffffu};
            return OK;
        }
        if (now_ns() >= until) return TIMEOUT;
        nap_ms(look_ms);
    }
}
