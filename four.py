import sys, tempfile, pathlib, time
sys.path[:0]=["/tmp/w/ranks/tests/support"]
import rank_programs as rp
from ranks import run_ranks
if __name__=="__main__":
    def go(name, fn, *a):
        t=time.time()
        with tempfile.TemporaryDirectory() as d:
            try: r=run_ranks(4, pathlib.Path(d), fn, *a, limit=500, group_seconds=300)[0]
            except BaseException as e: r="FAIL "+str(e)[-1500:]
        print(name, round(time.time()-t), r, flush=True)
    go("sharded compile", rp.compile_parallel, ["tensor","uneven","sequence","distributed output"], "compile")
    go("gpipe", rp.run_schedule, "ScheduleGPipe")
    go("fsdp 2d", rp.compile_fully_sharded, "two dimensions")
    go("interleaved", rp.run_schedule, "ScheduleInterleaved1F1B")
    go("losses", rp.compile_losses)
    go("fsdp plain", rp.compile_fully_sharded, "plain")
    go("sharded torch.compile", rp.compile_parallel, ["tensor","sequence"], "torch.compile")
