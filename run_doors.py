import sys, tempfile, pathlib
sys.path[:0]=["/tmp/w/doors","/tmp/w/ranks/tests/support"]
import door_programs
from ranks import run_ranks
if __name__=="__main__":
    world=int(sys.argv[1]); way=sys.argv[2].split(','); kinds=sys.argv[3].split(',')
    with tempfile.TemporaryDirectory() as d:
        r=run_ranks(world, pathlib.Path(d), door_programs.models, kinds, way, d, limit=3000)
        for rank,x in enumerate(r):
            for k,v in x.items():
                if v!="ok": print("RANK",rank,k,v[:300])
