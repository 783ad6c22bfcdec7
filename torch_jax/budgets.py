"""Every number that the package decides by: how many calls, bytes, seconds or rows are enough.

They are chosen, and another number would be as right: facts of PyTorch, JAX and mathematics are
in the files that use them. What users may change is a setting (:mod:`torch_jax.config`).

>>> from torch_jax.budgets import OPERATORS_OF_A_FUSED_GROUP
>>> OPERATORS_OF_A_FUSED_GROUP
256
"""

# --- When something is compiled -------------------------------------------------------------------

# Operators after which fused mode runs a group in any case.
OPERATORS_OF_A_FUSED_GROUP = 256
# Operators from which on a group of fused mode ends where one comes that groups begin with, so that
# a loop is cut at the same places each time it comes around.
OPERATORS_BEFORE_A_FUSED_CUT = 32
# New zeros up to this size are copied from the host, where XLA would compile a program.
BYTES_OF_ZEROS_FROM_HOST = 1 << 16
# A view of a memory up to this size is cut out on the host, which compiles nothing; accelerators
# send all of the memory for it.
BYTES_READ_ON_HOST = 1 << 20
# A constant up to this size is compared by its values, and is written into an exported program, in
# which XLA computes with it. A larger one is compared by its identity, and is an input.
ELEMENTS_OF_A_SMALL_CONSTANT = 1 << 10

# --- What is kept ---------------------------------------------------------------------------------

# Entries of a cache that new shapes or numbers would let grow without end. A full cache is emptied,
# or loses its oldest entry.
ENTRIES_REMEMBERED = 1 << 12
# Places of views in their memories, and integers of recorded operators. More than of other entries:
# when they are forgotten, the same view has another number, and its programs are compiled again.
PLACES_REMEMBERED = 1 << 16
# Of the memory maps that Linux gives a process: from there on entries are dropped.
SHARE_OF_MEMORY_MAPS = 0.5
# Of the C library's heap: where so much is new, the pages of free blocks go back to the kernel.
SHARE_OF_HEAP_BEFORE_A_TRIM = 0.125
# New entries between two looks at the process's memory maps, of which each takes milliseconds.
ENTRIES_BETWEEN_LOOKS_AT_MAPS = 64
# Traces of a JAX function, and states of one, each with its traces.
TRACES_OF_A_FUNCTION = 256
# States of a JAX function that hold arrays, and keep them alive: a function that is made at each
# call may hold others each time.
STATES_WITH_ARRAYS = 2
# Objects that a JAX function reaches. The state of a function with more is not compared, since each
# call would take milliseconds.
OBJECTS_OF_A_FUNCTION = 5000
# Explanations of programs and of calls that ran Python again: ever new ones would fill the memory.
EXPLANATIONS_KEPT = 256
# States of recordings that are compared with a new one, to find what is similar.
STATES_COMPARED = 256
# Flags of checks for which the host does not wait, before they come over together.
FLAGS_ASKED_TOGETHER = 32

# Parts in which the pieces of a checkpoint are read for their checksums: each piece may be GBs.
BYTES_READ_AT_ONCE = 1 << 20

# --- Form of a program ----------------------------------------------------------------------------

# Elements of the largest window of a convolution that is written out, one product for each.
ELEMENTS_OF_A_CONVOLUTION = 64
# Elements of the largest window by channel whose weight gradient is a sum for each element.
ELEMENTS_OF_A_WEIGHT_GRADIENT = 27
# Elements of the largest window of a maximum whose gradient is written out, one sum for each:
# 5x5 takes 2.5 times as long as a scatter on CPUs, and 7x7 with stride 7 200 times.
ELEMENTS_OF_A_MAXIMUM = 9
# Elements of a sum over leading dims, from which on XLA's reductions on the CPU take 10 to 40 times
# as long as a product with ones (256x32000: 25 ms and 1).
ELEMENTS_OF_A_WIDE_SUM = 1 << 13
# Reads of other places that may be behind a result of a fused program on the CPU.
READS_OF_A_FUSION = 32
# Groups of causal attention's blocks: programs grow with them, as the work does that they skip.
GROUPS_OF_BLOCKS = 4
# Rows of a block of attention, at least, where memory asks for smaller ones.
ROWS_OF_A_BLOCK = 16
# Elements of the shortest array where sizes are not known, or rounded up: fewer programs.
ELEMENTS_OF_A_BUCKET = 16
# Elements of a piece of a draw in place, where JAX is on the CPU; small tensors draw one, too.
ELEMENTS_OF_A_PIECE = 1 << 14
# Bits of a position in a random key of 64 bits, up to which a permutation is one sort of such keys:
# with more of these, keys would often be equal but for the position.
BITS_OF_A_PERMUTATION = 21
# Multiplications of one product, from which on Eigen splits it over cores, and YNNPACK does not.
MULTIPLICATIONS_OF_A_PRODUCT = 1 << 20
# Rows of a bfloat16 product, up to which YNNPACK takes no longer than Eigen.
ROWS_OF_A_BFLOAT16_PRODUCT = 64
# Threads of XLA for each of several CPU devices: its program may run, and on each of two threads of
# Python a next one may wait to be launched.
THREADS_OF_A_CPU_DEVICE = 3

# --- What the CPU is asked ------------------------------------------------------------------------

# Elements of a call whose tensors cannot be made small, on which the CPU's kernel is tried all the
# same: more might take it seconds, and nothing is refused then.
ELEMENTS_TRIED_ON_CPU = 1 << 22
# Elements of a call that a meta function refuses, for which the CPU is asked for its words: kernels
# refuse before they read anything, so that this bounds memory alone.
ELEMENTS_REFUSED_BY_CPU = 1 << 26

# --- Patience -------------------------------------------------------------------------------------

# For all ranks to come: the time that JAX gives them by default.
SECONDS_TO_MEET = 300
# For the coordinator to say which processes have ended.
SECONDS_TO_ANSWER = 5.0
# For a process that ends to be known to have ended: its connections to others may close first.
SECONDS_TO_HEAR_OF_AN_END = 1.0
# Between questions to the coordinator, while a call waits for other processes: which of them have
# ended, and which collective they ask for.
SECONDS_BETWEEN_QUESTIONS = 1.0
# Between looks at what takes long in other processes, at first; each pause is longer than the last.
SECONDS_OF_A_FIRST_PAUSE = 0.0002
# The longest of these pauses.
SECONDS_OF_A_PAUSE = 0.05
# For results of processes that have ended, which may still be on their way.
SECONDS_AFTER_AN_END = 20.0
# For threads that compute at the end of the process: an operator that takes longer may abort it.
SECONDS_AT_EXIT = 2.0
# For a thread that imports JAX at the end of the process.
SECONDS_OF_IMPORTS_AT_EXIT = 20.0
# For the batch that is being loaded when a loop is left: the next loop may use the same loader.
SECONDS_FOR_A_BATCH = 5.0
# Of compiling, before a terminal shows it; a break of this length begins a new count.
SECONDS_BEFORE_PROGRESS = 2.0
# Between looks at a thread that is profiled: a thousand looks a second cost a few per cent.
SECONDS_BETWEEN_SAMPLES = 0.001

# --- Warnings and hints ---------------------------------------------------------------------------

# Forms of an operator that one line has compiled, some 20 ms each.
FORMS_BEFORE_WARNING = 32
# Times that the Python of a pure function ran again, after which a warning names the causes.
RUNS_BEFORE_WARNING = 4
# Runs that find a program of code that looks at values, for each that is compiled: a small one
# takes XLA 0.1 s, and saves a tenth of a millisecond a run.
RUNS_TO_PAY_FOR_A_PROGRAM = 64
# Of an operator of code that looks at values: a CPU's core computes fewer of them in less time than
# it takes to record the operator, and a program of such operators saves none.
ELEMENTS_OF_A_SMALL_OPERATOR = 1 << 13
# Calls that have recorded one graph, after which jit(pure=True) may be hinted at.
CALLS_BEFORE_HINT = 50
# Share of Python in the time from call to call that is worth that hint.
SHARE_WORTH_A_HINT = 0.3
# Size of a constant, in a program that JAX makes, that is worth a warning.
BYTES_WORTH_A_WARNING = 1 << 20

# --- Rows of reports ------------------------------------------------------------------------------

# Rows of a table of memory, or of a profile.
ROWS_OF_A_TABLE = 20
# Share of the time that is worth a row of a profile.
SHARE_WORTH_A_ROW = 0.01
# Rows of a list within an error: ranks, faults, arrays in memory.
ROWS_OF_AN_ERROR = 10
# Lines of a script worth changing that the report of `python -m torch_jax run` names.
LINES_WORTH_CHANGING = 5
# Times that a line must wait, or be compiled, before it is taken for a loop that does.
TIMES_OF_A_LOOP = 8
# Operators that a line has compiled by themselves, and that are worth being one program.
OPERATORS_WORTH_A_PROGRAM = 3
# Seconds that are worth changing a line.
SECONDS_WORTH_A_CHANGE = 0.001
