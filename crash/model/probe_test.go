package model
import ("testing";"time")
var all=[]Mutant{NotFoundAtOnce, WindowAsOfLoad, UnderWayOnlyIfOwned, RefusalHidesDoubt, LateAcceptedOfLastOnly}
func show(t *testing.T,name string,s Scenario){
  st:=time.Now()
  r:=Explore(s)
  t.Logf("%s %v/%v: %d states %v",name,s.Kind,s.Policy,r.States,time.Since(st))
  for o,tr:=range r.Outcomes{t.Logf("    %v",o); if o.Accepted>1&& !o.Flagged {t.Logf("%v",tr)} }
  for v,tr:=range r.Violations{t.Logf("   !! %s\n%v",v,tr)}
}
func TestProbe(t *testing.T){
 for k:=Keys;k<=Neither;k++{ for p:=Retry;p<=Drop;p++{
  show(t,"today",Scenario{Kind:k,Policy:p,Faults:AnyFault,MaxFaults:2,Broken:all})
 }}
 show(t,"crash only", Scenario{Kind:SearchAtOnce,Policy:Drop,Faults:Crash,MaxFaults:1,Broken:all})
 show(t,"today, lose", Scenario{Kind:SearchAtOnce,Policy:Drop,Faults:LoseSession,MaxFaults:1,Broken:all})
}
func TestRefuse(t *testing.T){
 for k:=Keys;k<=Neither;k++{ 
  show(t,"refuse,design",Scenario{Kind:k,Policy:Retry,Faults:AnyFault|Refuse,MaxFaults:2})
  show(t,"refuse,today",Scenario{Kind:k,Policy:Retry,Faults:AnyFault|Refuse,MaxFaults:2,Broken:all})
 }}
func TestSecond(t *testing.T){
  show(t,"2nd,design",Scenario{Kind:Keys,Policy:Retry,Faults:AnyFault|Refuse,MaxFaults:2,SecondRun:true})
  show(t,"2nd,design",Scenario{Kind:Neither,Policy:Retry,Faults:AnyFault,MaxFaults:2,SecondRun:true})
  show(t,"2nd,today",Scenario{Kind:Keys,Policy:Retry,Faults:AnyFault,MaxFaults:2,SecondRun:true,Broken:all})
}
func TestAssume(t *testing.T){
 for p:=Retry;p<=Drop;p+=2{
  show(t,"prompt",Scenario{Kind:SearchAtOnce,Policy:p,Faults:AnyFault,MaxFaults:2,Dropped:[]Assumption{PromptProvider}})
  show(t,"gap",Scenario{Kind:SearchAtOnce,Policy:p,Faults:AnyFault,MaxFaults:2,Dropped:[]Assumption{ShortGap}})
  show(t,"gap",Scenario{Kind:KeysForAWhile,Policy:p,Faults:AnyFault,MaxFaults:2,Dropped:[]Assumption{ShortGap}})
  show(t,"both",Scenario{Kind:Neither,Policy:p,Faults:AnyFault,MaxFaults:2,Dropped:[]Assumption{ShortGap,PromptProvider}})
 }
}
